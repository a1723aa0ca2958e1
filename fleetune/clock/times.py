"""Seconds at a batch size that was not measured."""

from bisect import bisect_left
from collections.abc import Sequence

from fleetune.errors import Refused


def interpolate(batch_sizes: Sequence[int], seconds: Sequence[float], samples: int) -> float:
    """Seconds for `samples`, from `seconds` measured at the ascending `batch_sizes`.

    Linear between two sizes; beyond the ends along the line through the two nearest sizes; proportional where there
    is only one size. A time below zero is refused: the measurement cannot be extended that far.
    """
    place = bisect_left(batch_sizes, samples)
    if place < len(batch_sizes) and batch_sizes[place] == samples:
        return seconds[place]
    if len(batch_sizes) == 1:
        return seconds[0] * samples / batch_sizes[0]
    right = min(max(place, 1), len(batch_sizes) - 1)
    x0, x1 = batch_sizes[right - 1], batch_sizes[right]
    t0, t1 = seconds[right - 1], seconds[right]
    value = t0 + (t1 - t0) * ((samples - x0) / (x1 - x0))
    if value < 0:
        raise Refused(
            f"times: {samples} samples would take {value:.3g} s on the line through batch sizes {x0} and {x1}; "
            "measure a batch size nearer to it"
        )
    return value


def nanoseconds(seconds: float) -> int:
    """Whole nanoseconds; the unit in which the simulation counts."""
    return round(seconds * 1e9)
