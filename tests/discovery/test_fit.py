"""From round trips to lines."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.discovery.fit import best_fit, fit
from fleetune.discovery.protocol import Probed, Trip
from fleetune.discovery.sweep import SIZES_BYTES, sweep


def probed(latency_s: float, bytes_per_s: float, noise: float = 0.0, outliers: float = 0.0) -> Probed:
    """Round trips over a link whose small answers take latency_s, with one-sided noise and rare stalls."""
    rng = np.random.default_rng(1)

    def round_trip_s(size: int) -> float:
        stall = 10.0 if rng.random() < outliers else 1.0
        return (2 * latency_s + size / bytes_per_s) * (1 + noise * rng.exponential()) * stall

    times = tuple(tuple(round_trip_s(size) for _ in range(9)) for size in SIZES_BYTES)
    return Probed(sizes_bytes=SIZES_BYTES, round_trips_s=times)


@settings(max_examples=50, deadline=None)
@given(latency_s=st.floats(1e-5, 0.1), bytes_per_s=st.floats(1e5, 1e10))
def test_an_exact_line_is_found(latency_s: float, bytes_per_s: float) -> None:
    """Without noise, latency and rate come back within a thousandth wherever the sizes can tell them apart."""
    line = fit(probed(latency_s, bytes_per_s))
    for size in SIZES_BYTES:
        assert line.latency_s + size / line.bytes_per_s == pytest.approx(latency_s + size / bytes_per_s, rel=1e-3)
    assert line.error < 1e-3


def test_stalls_do_not_move_the_line() -> None:
    """A tenth of the messages taking ten times as long, on top of noise, changes the line by a few percent."""
    line = fit(probed(2e-4, 1e8, noise=0.03, outliers=0.1))
    assert line.latency_s == pytest.approx(2e-4, rel=0.05)
    assert line.bytes_per_s == pytest.approx(1e8, rel=0.05)
    assert line.error < 0.05


def test_what_is_no_line_says_so() -> None:
    """Times that do not grow with size leave a large error, and still a usable latency and rate."""
    rng = np.random.default_rng(3)
    times = tuple((float(t),) for t in 10 ** rng.uniform(-4, 0, len(SIZES_BYTES)))
    line = fit(Probed(sizes_bytes=SIZES_BYTES, round_trips_s=times))
    assert line.error > 0.2 and line.latency_s >= 0 and line.bytes_per_s > 0


def test_a_poor_fit_is_measured_again() -> None:
    """The first good fit ends the probing; without one the best of three stays."""
    poor = Probed(sizes_bytes=(0, 10, 20, 40), round_trips_s=((1.0,), (9.0,), (0.9,), (20.0,)))
    good = probed(1e-3, 1e6)
    answers = iter([poor, good, poor])
    assert best_fit(lambda: next(answers)).error < 0.01
    assert next(answers) is poor, "two probes were enough"
    asked: list[int] = []
    assert best_fit(lambda: asked.append(1) or poor).error == fit(poor).error  # type: ignore[func-returns-value]
    assert len(asked) == 3


def test_a_sweep_goes_round_the_sizes() -> None:
    """After the warm-ups every turn takes all sizes, so that a disturbance spreads."""
    sent: list[int] = []

    def ping(size: int) -> Trip:
        sent.append(size)
        return Trip(1e-4, 1e-5, 2e-5)

    probe = sweep(ping, budget_s=1.0)
    assert sent == [0] * 5 + list(SIZES_BYTES) * 15
    assert probe.round_trips_s == ((1e-4,) * 15,) * len(SIZES_BYTES)
    assert probe.sender_cpu_s == ((1e-5,) * 15,) * len(SIZES_BYTES)
    assert probe.receiver_cpu_s == ((2e-5,) * 15,) * len(SIZES_BYTES)


def test_a_slow_link_is_probed_within_its_budget() -> None:
    """At 100 kB/s the large sizes are left out and three turns suffice; the line is found all the same."""
    spent: list[float] = []

    def ping(size: int) -> Trip:
        spent.append(0.02 + size / 1e5)
        return Trip(spent[-1], 0.0, 0.0)

    probe = sweep(ping, budget_s=1.5)
    assert probe.sizes_bytes == SIZES_BYTES[:3]
    assert sum(spent) < 3
    assert fit(probe).bytes_per_s == pytest.approx(1e5, rel=1e-3)
