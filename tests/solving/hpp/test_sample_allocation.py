"""Allocation of samples to a group of devices against brute force."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.solving.hpp.sample_allocation import allocate

TIMES = st.integers(0, 12).map(float)


@st.composite
def allocation_problems(draw: st.DrawFn) -> tuple[list[list[float]], list[int], int]:
    """Times of up to 3 devices for up to 6 samples, growing or not, and how many each may take."""
    samples, devices = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    grows = draw(st.booleans())
    rows = [draw(st.lists(TIMES, min_size=samples, max_size=samples)) for _ in range(devices)]
    return [sorted(r) if grows else r for r in rows], [draw(st.integers(0, 7)) for _ in rows], samples


@settings(max_examples=300, deadline=None)
@given(allocation_problems(), st.integers(1, 3))
def test_no_allocation_has_a_faster_slowest_device(given: tuple[list[list[float]], list[int], int], least: int) -> None:
    """The allocation is optimal among all that give each device the fewest samples; None is returned exactly where none
    exists."""
    seconds, most, samples = given
    ways = [
        y
        for y in product(range(least, samples + 1), repeat=len(most))
        if sum(y) == samples and all(a <= b for a, b in zip(y, most, strict=True))
    ]
    shares = allocate(seconds, most, samples, least)
    assert (shares is None) == (not ways)
    if shares is not None:
        assert tuple(shares) in ways

        def slowest(y: tuple[int, ...]) -> float:
            return max(row[k - 1] for row, k in zip(seconds, y, strict=True))

        assert slowest(tuple(shares)) == min(map(slowest, ways))


def test_samples_follow_speed() -> None:
    """Four samples on devices of 1, 2 and 4 s each: 2, 1, 1 keeps the slowest at 4 s."""
    seconds = [[pace * y for y in range(1, 5)] for pace in (1.0, 2.0, 4.0)]
    assert allocate(seconds, [4, 4, 4], 4) == [2, 1, 1]
