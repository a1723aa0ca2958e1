"""compute-aware and channel-aware, the paper's benchmark schemes."""

import pytest

from tests.support.solving.lola_deft.instances import drawn, plain, solved


@pytest.mark.parametrize("bandwidth", ["joint", "equal"])
def test_deepest_block_goes_to_the_best_device(bandwidth: str) -> None:
    """The deeper block goes to the faster device, or to the better channel; the third device is unused."""
    problem = plain(bandwidth=bandwidth, memory_bytes=[9999] * 3)
    by_speed, by_channel = solved(problem, "compute-aware"), solved(problem, "channel-aware")
    assert by_speed["devices"] == [2, 0]
    assert by_channel["devices"] == [1, 2]
    assert by_speed["bandwidth_hz"] == by_channel["bandwidth_hz"] == [5e5, 5e5]
    assert by_speed["objective"] == 2.0 + 12 / 1.0
    assert by_channel["objective"] == 2.0 + 12 / 2.0


def test_demand_is_measured() -> None:
    """The most demanding block is the one that takes longest, wherever it lies; of equals, the deeper."""
    fits = plain(memory_bytes=[9999] * 3)
    assert solved(fits | {"compute_s": [[2.0, 1.0], [3.0, 2.0], [9.0, 8.0]]}, "compute-aware")["devices"] == [0, 1]
    assert solved(fits | {"compute_s": [[2.0, 2.0], [3.0, 3.0], [9.0, 9.0]]}, "compute-aware")["devices"] == [1, 0]


def test_the_memory_wall() -> None:
    """A plan that exceeds memory names the device, the block, the need and what there is."""
    plan = solved(plain(), "channel-aware")
    assert plan["devices"] == [1, 2]
    assert not plan["feasible"]
    assert plan["reason"] == "device 2 lacks 1000 bytes for block 1, which needs 3000 bytes; it has 2000 bytes"


def test_the_worst_lack_is_named() -> None:
    """The message names the block that lacks most memory."""
    problem = plain(memory_bytes=[4000, 500, 2000], block_memory_bytes=[1000, 1500])
    plan = solved(problem | {"spectral_efficiency": [0.1, 2.0, 1.0]}, "channel-aware")
    assert plan["reason"] == "device 1 lacks 1000 bytes for block 1, which needs 1500 bytes; it has 500 bytes"


def test_feasible_ones_are_bounded() -> None:
    """Plans that fit memory are feasible and bounded; both cases occur."""
    plans = [solved(drawn(seed, 8, 3), method) for seed in range(20) for method in ("compute-aware", "channel-aware")]
    assert {plan["feasible"] for plan in plans} == {True, False}
    assert all(plan["objective"] >= plan["lower_bound"] for plan in plans if plan["feasible"])
