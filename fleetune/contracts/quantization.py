"""Quantization: frozen weights in 4 bits below adapters that are trained."""

from fleetune.contracts.record import one_of
from fleetune.errors import Refused

NF4 = "nf4"


def check_quantization(quantization: str | None, precision: str, adapts: bool) -> None:
    """Refuse a quantization that is unknown, or without adapters on a frozen base."""
    if quantization is None:
        return
    one_of("model", "quantization", quantization, (NF4,))
    if not adapts:
        raise Refused(
            f"model: quantization {quantization} holds frozen weights below adapters in 4 bits; give lora, or leave "
            "quantization out"
        )
    if precision != "float32":
        raise Refused(
            f"model: quantization {quantization} is of float32 weights, but precision is {precision}; leave one of the "
            "two out"
        )
