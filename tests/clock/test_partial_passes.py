"""What is computed of backwards where a segment trains some of its units."""

from dataclasses import replace

import pytest

from fleetune.clock import Clock
from fleetune.clock.partial_passes import backward_shares, forward_shares, with_least_passes, with_whole_rests
from fleetune.contracts.plan import Plan
from fleetune.contracts.profile import PartialPasses
from fleetune.errors import Refused
from tests.support.clock import fleets

MEASURED = PartialPasses(below=(0.75, 0.5, 0.25, 0.1), passed=(0.5, 0.4, 0.3, 0.2), lowest=(0.9, 0.8, 0.7, 0.6))


@pytest.mark.parametrize(
    ("places", "trained", "expected"),
    [
        ((0, 1, 2, 3), set(), (1.0, 1.0, 1.0, 1.0)),
        ((0, 1, 2, 3), {0, 1, 2, 3}, (1.0, 1.0, 1.0, 1.0)),
        ((0, 1, 2, 3), {1, 2}, (0.0, 0.8, 1.0, 0.2)),
        ((0, 1, 2, 3), {0, 2}, (1.0, 0.4, 1.0, 0.2)),
        ((2, 3), {2}, (1.0, 0.2)),
        ((2, 3), {3}, (0.0, 0.6)),
    ],
)
def test_each_unit_counts_what_is_computed_of_it(
    places: tuple[int, ...], trained: set[int], expected: tuple[float, ...]
) -> None:
    """Nothing below the lowest trained unit, which computes no gradient of its inputs unless it is the segment's first;
    units that are passed compute that alone, and all else is whole."""
    assert backward_shares(places, trained, MEASURED) == expected


def test_forwards_below_the_lowest_trained_unit_keep_nothing() -> None:
    """They count their part, and all others are whole."""
    assert forward_shares((0, 1, 2, 3), {2}, MEASURED) == (0.75, 0.5, 1.0, 1.0)
    assert forward_shares((2, 3), {3}, MEASURED) == (0.25, 1.0)
    assert forward_shares((2, 3), {2}, MEASURED) == forward_shares((2, 3), set(), MEASURED) == (1.0, 1.0)


def test_a_profile_without_parts_counts_wholes() -> None:
    """Profiles of other strategies, and of earlier releases."""
    assert backward_shares((0, 1, 2), {1}, None) == (0.0, 1.0, 1.0)


def lane(trains: tuple[str, ...]) -> Plan:
    """One device runs four units and trains some."""
    made = fleets.plan(("u0 u1 u2 u3", {"a": 2}, 1), micro_batches=1)
    (only,) = made.lanes
    return replace(made, lanes=(replace(only, segments=(replace(only.segments[0], trains=trains),)),))


def test_a_round_takes_what_is_computed() -> None:
    """Two samples take 2.1 paces of 10 ms a unit forward and twice that backward: three forwards and 0.75 of u0's, then
    0.8 of u1, all of u2 and 0.2 of u3."""
    fleet = fleets.fleet(fleets.device("a"))
    profile = fleets.profile([fleets.unit(f"u{k}") for k in range(4)], {"a": 0.01})
    parts = replace(profile, times=(replace(profile.times[0], partial=MEASURED),))
    unit_s = 0.01 * 2.1
    assert Clock(fleet, parts).round_s(lane(("u1", "u2"))) == pytest.approx(unit_s * (3.75 + 2 * (0.8 + 1 + 0.2)))
    assert Clock(fleet, profile).round_s(lane(("u1", "u2"))) == pytest.approx(unit_s * (4 + 2 * 3))
    assert Clock(fleet, parts).round_s(lane(())) == Clock(fleet, profile).round_s(lane(()))


def test_what_a_backward_runs_again_stays_whole() -> None:
    """Of backwards of 4 s that take 6 with a forward of 2 s, 0.5 and 0.8 leave (2 + 2) / 6 and (3.2 + 2) / 6."""
    measured = PartialPasses(below=(0.9, 0.9), passed=(0.5, 0.5), lowest=(0.8, 0.8))
    found = with_whole_rests(measured, ((1.0, 4.0), (1.0, 4.0)), ((1.5, 6.0), (1.0, 4.0)))
    assert found.passed == pytest.approx((4 / 6, 0.5)) and found.lowest == pytest.approx((5.2 / 6, 0.8))


def test_the_least_of_backwards() -> None:
    """The smaller of both shares of a trained unit; the lowest trained one is never passed, and one that is not trained
    is never the lowest. All of it where nothing was measured."""
    units = [replace(fleets.unit(f"u{k}"), trainable_bytes=trained) for k, trained in enumerate((1, 0, 1, 1))]
    profile = fleets.profile(units, {"a": 0.01, "b": 0.01})
    measured = replace(MEASURED, passed=(0.0, 0.4, 0.9, 0.2), lowest=(0.9, 0.0, 0.7, 0.6))
    parts = replace(profile, times=(replace(profile.times[0], partial=measured), profile.times[1]))
    least = with_least_passes(parts)
    for share, whole, part in zip(
        (0.9, 0.4, 0.7, 0.2), profile.times[0].backward_s, least.times[0].backward_s, strict=True
    ):
        assert part == pytest.approx([share * seconds for seconds in whole])
    assert least.times[0].forward_s[1] == pytest.approx([0.5 * seconds for seconds in profile.times[0].forward_s[1]])
    assert least.times[1] == profile.times[1]


def test_shares_of_other_models_are_refused() -> None:
    """There is one for every unit, none below 0 and none above 1."""
    times = fleets.profile([fleets.unit("u0")], {"a": 0.01}).times[0]
    with pytest.raises(Refused, match="partial needs one number for each of 1 units"):
        replace(times, partial=MEASURED)
    with pytest.raises(Refused, match=r"a share is 1\.5"):
        PartialPasses(below=(1.0,), passed=(1.5,), lowest=(1.0,))
