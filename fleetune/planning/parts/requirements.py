"""Memory that is missing, in words: which device lacks how many bytes for what."""

from collections.abc import Sequence

from fleetune.contracts.profile import Unit
from fleetune.errors import Infeasible


def memory_shortage(device: str, missing_bytes: float, units: Sequence[Unit], samples: int, kept: int) -> Infeasible:
    """The error for a device that is too small for a segment."""
    span = units[0].name if len(units) == 1 else f"{units[0].name} .. {units[-1].name}"
    return Infeasible(
        f"device {device} lacks {format_bytes(missing_bytes)} for the cheapest segment it could run ({span}, {samples} "
        f"samples, {kept} micro-batches kept); give it more memory, leave it out or lower training.micro_batch_samples"
    )


def format_bytes(size: float) -> str:
    """Bytes for a sentence: exact, and readable where they are many."""
    exact = f"{int(size)} bytes"
    return exact if size < 1e6 else f"{size / 1e6:.1f} MB ({exact})"
