"""Times at batch sizes that were not measured."""

import pytest

from fleetune.clock import interpolate
from fleetune.errors import Refused


@pytest.mark.parametrize(
    ("samples", "expected"),
    [(2, 10.0), (3, 12.0), (4, 14.0), (6, 24.0), (8, 34.0), (1, 8.0), (10, 44.0)],
)
def test_linear_between_and_along_the_nearest_line_beyond(samples: int, expected: float) -> None:
    """Sizes 2, 4, 8 took 10, 14, 34: halves lie halfway, 1 and 10 on the lines through their two nearest sizes."""
    assert interpolate((2, 4, 8), (10.0, 14.0, 34.0), samples) == expected


def test_one_size_is_proportional() -> None:
    """Measured only at 4 samples, 6 samples take half as long again."""
    assert interpolate((4,), (2.0,), 6) == 3.0


def test_measured_sizes_come_back_bit_by_bit() -> None:
    """No arithmetic touches a size that was measured."""
    assert interpolate((1, 3, 7), (0.1, 0.3, 0.7), 3) == 0.3


@pytest.mark.parametrize(("seconds", "samples"), [((1.0, 9.0), 1), ((9.0, 1.0), 9)])
def test_a_negative_time_is_refused(seconds: tuple[float, float], samples: int) -> None:
    """A line that falls below zero names the samples and the sizes it came from."""
    with pytest.raises(Refused, match=f"{samples} samples would take -.* batch sizes 4 and 8"):
        interpolate((4, 8), seconds, samples)
