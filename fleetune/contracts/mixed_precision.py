"""Mixed precision: a half type that forward and backward compute in, beside float32 weights that are trained."""

from fleetune.contracts.record import one_of
from fleetune.errors import Refused

BF16, FP16 = "bf16", "fp16"
HALF = {BF16: "bfloat16", FP16: "float16"}
"""Name of a mixed precision -> torch's name of the type that it computes in."""
FIRST_LOSS_SCALE = 2.0**16
"""What a loss is multiplied by in fp16 at first, so that few gradients are too small for it."""


def check_mixed_precision(mixed_precision: str | None, precision: str) -> None:
    """Refuse a mixed precision that is unknown, or contradicts the precision of the weights."""
    if mixed_precision is None:
        return
    one_of("model", "mixed_precision", mixed_precision, tuple(HALF))
    if precision != "float32":
        raise Refused(
            f"model: mixed_precision {mixed_precision} trains float32 weights, but precision is {precision}; leave one "
            "of the two out"
        )
