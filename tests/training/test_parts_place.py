"""Who sends which samples to whom, drawn by hand; and who holds weights together."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from fleetune.contracts.plan import Lane, Plan, Segment, Share
from fleetune.errors import Refused
from fleetune.training.place import place_of, talks_to
from fleetune.training.reduction import tied_holders
from fleetune.training.shares import Overlap, overlaps


def segment(shares: dict[str, int], units: tuple[str, ...] = ("u",)) -> Segment:
    """Devices and the samples they take."""
    return Segment(units=units, shares=tuple(Share(device=d, samples=n) for d, n in shares.items()), warmup=1)


def drawn(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Transfers as text: a>x 0:3, with a star where values of all samples travel too."""
    found = overlaps(segment(before), segment(after))
    return [f"{o.source}>{o.target} {o.first}:{o.end}{'*' if o.carries_shared else ''}" for o in found]


def test_samples_keep_their_position() -> None:
    """
        a a a b b b b b
        x x x x x y y z
    What is the same for all samples comes to each receiver once, with its first rows.
    """
    assert drawn({"a": 3, "b": 5}, {"x": 5, "y": 2, "z": 1}) == ["a>x 0:3*", "b>x 3:5", "b>y 5:7*", "b>z 7:8*"]


def test_one_device_deals_and_one_device_collects() -> None:
    """
    a a a a        a a b c
    x x y z        x x x x
    """
    assert drawn({"a": 4}, {"x": 2, "y": 1, "z": 1}) == ["a>x 0:2*", "a>y 2:3*", "a>z 3:4*"]
    assert drawn({"a": 2, "b": 1, "c": 1}, {"x": 4}) == ["a>x 0:2*", "b>x 2:3", "c>x 3:4"]


def test_equal_shares_meet_one_to_one() -> None:
    """No transfer of nothing where borders coincide."""
    assert drawn({"a": 2, "b": 2}, {"x": 2, "y": 2}) == ["a>x 0:2*", "b>y 2:4*"]


PARTS = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@given(PARTS, PARTS)
def test_every_sample_travels_once(left: list[int], right: list[int]) -> None:
    """From its holder to its next holder; each receiver is served shared values exactly once."""
    size = max(sum(left), sum(right))
    left[-1] += size - sum(left)
    right[-1] += size - sum(right)
    before = segment({f"a{n}": samples for n, samples in enumerate(left)})
    after = segment({f"b{n}": samples for n, samples in enumerate(right)})
    found = overlaps(before, after)
    assert sorted(sample for o in found for sample in range(o.first, o.end)) == list(range(size))
    for o in found:
        assert before.span(o.source)[0] <= o.first < o.end <= before.span(o.source)[1]
        assert after.span(o.target)[0] <= o.first < o.end <= after.span(o.target)[1]
    assert [o.target for o in found if o.carries_shared] == list(after.devices)


PLAN = Plan(
    strategy="test",
    micro_batch_samples=4,
    micro_batches=2,
    lanes=(
        Lane(
            name="main",
            segments=(
                segment({"a": 3, "b": 1}, ("u0", "u1")),
                segment({"c": 4}, ("u2",)),
                segment({"d": 2, "e": 2}, ("u3", "u4")),
            ),
        ),
    ),
)


def test_a_device_knows_its_place() -> None:
    """First, middle and last segment; samples, neighbours, and who speaks for the group."""
    b, c, e = (place_of(PLAN, device) for device in "bce")
    assert (b.index, b.span, b.samples, b.is_first, b.is_last, b.leads) == (0, (3, 4), 1, True, False, False)
    assert b.inflow == () and b.outflow == (Overlap("b", "c", 3, 4, False),)
    assert c.inflow == (Overlap("a", "c", 0, 3, True), Overlap("b", "c", 3, 4, False)) and c.leads
    assert c.outflow == (Overlap("c", "d", 0, 2, True), Overlap("c", "e", 2, 4, True))
    assert (e.index, e.span, e.is_first, e.is_last) == (2, (2, 4), False, True)
    assert e.segment.units == ("u3", "u4") and e.outflow == ()


def test_a_device_talks_to_its_lane_and_never_to_itself() -> None:
    """Neighbours first."""
    assert talks_to(PLAN, "b")[:2] == ("c", "a")
    assert all(set(talks_to(PLAN, d)) == set("abcde") - {d} for d in "abcde")
    assert all(len(talks_to(PLAN, d)) == 4 for d in "abcde")


def test_a_device_without_a_part_is_refused() -> None:
    """With the names of those that have one."""
    with pytest.raises(Refused, match="device 'f' has no part in it; taking part are a, b, c, d, e"):
        place_of(PLAN, "f")


def test_weights_held_by_one_segment_are_not_exchanged() -> None:
    """Only what units of different segments share; segments ascend."""
    units = {"u0": ("w", "inner"), "u1": ("inner",), "u2": (), "u3": ("w", "last"), "u4": ("last",)}
    assert tied_holders(units, PLAN.lanes[0]) == {"w": (0, 2)}
    assert tied_holders({"u0": ("w",), "u2": ("w",), "u4": ("w",)}, PLAN.lanes[0]) == {"w": (0, 1, 2)}
    assert tied_holders({}, PLAN.lanes[0]) == {}
