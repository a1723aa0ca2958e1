"""The part of each device in a plan, its transfers, and the plans that training cannot run."""

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from fleetune.contracts.plan import Gate, Lane, LinkUse, Plan, Segment, Share
from fleetune.data.prepared_data import batch_indices
from fleetune.errors import Refused
from fleetune.program import lower, sample_transfers, seats_of
from fleetune.training.batches import dealing_plan, lane_batch, lane_rows, lane_seed
from fleetune.training.coordinator import validate_supported
from fleetune.training.gradients import tied_holders
from fleetune.training.local_data import uneven_passes
from tests.support.clock import fleets, ticks


def segment(shares: dict[str, int], units: tuple[str, ...] = ("u",)) -> Segment:
    """Return a segment of these devices with the samples they take."""
    return Segment(units=units, shares=tuple(Share(device=d, samples=n) for d, n in shares.items()), warmup=1)


def drawn(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Return transfers as text: a>x 0:3, with a star if unbatched values travel too."""
    found = sample_transfers(segment(before), segment(after))
    return [f"{o.source}>{o.target} {o.first}:{o.end}{'*' if o.carries_shared else ''}" for o in found]


def test_samples_keep_their_positions_between_groups() -> None:
    """Receivers get the samples at their positions; unbatched values come once, with the first rows.

    a a a b b b b b
    x x x x x y y z
    """
    assert drawn({"a": 3, "b": 5}, {"x": 5, "y": 2, "z": 1}) == ["a>x 0:3*", "b>x 3:5", "b>y 5:7*", "b>z 7:8*"]


def test_one_sender_with_three_receivers_and_three_senders_with_one_receiver() -> None:
    """One sender serves three receivers, and one receiver joins three senders.

    a a a a        a a b c
    x x y z        x x x x
    """
    assert drawn({"a": 4}, {"x": 2, "y": 1, "z": 1}) == ["a>x 0:2*", "a>y 2:3*", "a>z 3:4*"]
    assert drawn({"a": 2, "b": 1, "c": 1}, {"x": 4}) == ["a>x 0:2*", "b>x 2:3", "c>x 3:4"]


def test_equal_shares_transfer_one_to_one() -> None:
    """Groups with the same borders make no empty transfer."""
    assert drawn({"a": 2, "b": 2}, {"x": 2, "y": 2}) == ["a>x 0:2*", "b>y 2:4*"]


PARTS = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@given(PARTS, PARTS)
def test_every_sample_travels_once(left: list[int], right: list[int]) -> None:
    """Every sample goes from its holder to its next holder; each receiver gets unbatched values exactly once."""
    size = max(sum(left), sum(right))
    left[-1] += size - sum(left)
    right[-1] += size - sum(right)
    before = segment({f"a{n}": samples for n, samples in enumerate(left)})
    after = segment({f"b{n}": samples for n, samples in enumerate(right)})
    found = sample_transfers(before, after)
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


def test_a_seat_has_its_segment_and_samples() -> None:
    """First, middle and last segment have the right samples and leaders."""
    b, c, e = (next(seats_of(PLAN, device)) for device in "bce")
    assert (b.index, b.span, b.samples, b.is_first, b.is_last, b.is_leader) == (0, (3, 4), 1, True, False, False)
    assert c.is_leader and (c.is_first, c.is_last) == (False, False)
    assert (e.index, e.span, e.is_first, e.is_last) == (2, (2, 4), False, True)
    assert e.segment.units == ("u3", "u4")


def test_peers_are_those_that_a_device_exchanges_tensors_with() -> None:
    """The peers of a device are its neighbours across cuts, its group, and the holders of weights that it shares."""
    assert [lower(PLAN).of(device).peers for device in "abc"] == [("c", "b"), ("c", "a"), ("a", "b", "d", "e")]
    tied = {"u0": ("w",), "u4": ("w",)}
    assert [set(lower(PLAN, tied=tied).of(device).peers) for device in "abc"] == [{*"cbd"}, {*"cae"}, {*"abde"}]


def test_a_device_without_a_part_is_refused() -> None:
    """The refusal names the devices that have a part."""
    with pytest.raises(Refused, match="device 'f' has no part in it; devices with a part are a, b, c, d, e"):
        lower(PLAN).of("f")


def test_weights_held_by_one_segment_are_not_exchanged() -> None:
    """Only weights of units in different segments are exchanged; segments ascend."""
    units = {"u0": ("w", "inner"), "u1": ("inner",), "u2": (), "u3": ("w", "last"), "u4": ("last",)}
    assert tied_holders(units, PLAN.lanes[0]) == {"w": (0, 2)}
    assert tied_holders({"u0": ("w",), "u2": ("w",), "u4": ("w",)}, PLAN.lanes[0]) == {"w": (0, 1, 2)}
    assert tied_holders({}, PLAN.lanes[0]) == {}


LANE = fleets.PLAN.lanes[0]
GATE = Gate(subnet="head#0", operations="112")


def with_segments(*trains: str) -> Plan:
    """Return the usual plan, with its segments training these units."""
    named = tuple(replace(s, trains=tuple(names.split())) for s, names in zip(LANE.segments, trains, strict=True))
    return replace(fleets.PLAN, lanes=(replace(LANE, segments=named),))


@pytest.mark.parametrize(
    "plan",
    [
        fleets.PLAN,
        replace(fleets.PLAN, links=(LinkUse(source="a", target="b"),)),
        replace(fleets.PLAN, gates=(Gate(subnet="head#0", operations="111"),)),
        with_segments("u0 u1", "u3 u2"),
        with_segments("u1", ""),
        ticks.plan({"x": [ticks.segment("u0", "x"), ticks.segment("u1", "h"), ticks.segment("u2", "x")]}),
        replace(fleets.PLAN, collector="c"),
        replace(fleets.PLAN, gates=(GATE,)),
        replace(fleets.PLAN, links=(LinkUse(source="a", target="b", share=0.5),)),
        replace(fleets.PLAN, links=(LinkUse(source="a", target="b", codec="top-k", ratio=9.0),)),
        replace(fleets.PLAN, lanes=(LANE, Lane(name="more", segments=LANE.segments)), collector="c"),
        replace(fleets.PLAN, lanes=(LANE, Lane(name="more", segments=LANE.segments)), average_every_rounds=2),
    ],
)
def test_what_workers_run_is_supported(plan: Plan) -> None:
    """Chains with neutral values, devices in several segments, units that are not trained, codecs, shares of links,
    lanes that are brought together, and a collector."""
    validate_supported(plan)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (
            replace(fleets.PLAN, lanes=(LANE, Lane(name="more", segments=LANE.segments))),
            "with 2 lanes that nothing brings together",
        ),
    ],
)
def test_what_no_worker_runs_is_refused(plan: Plan, words: str) -> None:
    """The refusal names every feature and what to do instead."""
    with pytest.raises(Refused, match=words) as refused:
        validate_supported(plan)
    assert str(refused.value).endswith("look at this plan with --until plan, or train with another strategy")


def test_rows_are_dealt_in_proportion_to_micro_batches() -> None:
    """Lanes of 3, 1 and 2 micro-batches own rows 3:1:2, each row once; equal lanes are dealt to in turn."""
    whole = replace(PLAN, micro_batches=3, lanes=tuple(replace(PLAN.lanes[0], name=name) for name in "xyz"))
    lanes = tuple(replace(lane, micro_batches=n) for lane, n in zip(whole.lanes, (0, 1, 2), strict=True))
    uneven = replace(whole, lanes=lanes)
    rows = [lane_rows(uneven, lane, 61, seed=4) for lane in uneven.lanes]
    assert sorted(np.concatenate(rows)) == list(range(61)) and [len(r) for r in rows] == [31, 10, 20]
    assert [len(set(range(k, k + 6)) & set(np.flatnonzero(dealt_to(uneven) == 0))) for k in range(40)] == [3] * 40
    order = np.stack([lane_rows(whole, lane, 60, seed=4) for lane in whole.lanes], axis=1).reshape(-1)
    assert np.array_equal(order, np.random.Generator(np.random.PCG64([4, 60])).permutation(60))


def test_few_rows_are_dealt_to_all_lanes() -> None:
    """Bug: the rows of one lane came one after the other, 100 to x before the first one to y."""
    lanes = tuple(replace(PLAN.lanes[0], name=name, rounds=rounds) for name, rounds in (("x", 0), ("y", 1), ("z", 0)))
    uneven = replace(PLAN, micro_batches=1, lanes=lanes, average_every_rounds=100)
    assert np.bincount(dealt_to(uneven)[:150]).tolist() == [75, 1, 74]


def dealt_to(plan: Plan) -> np.ndarray:
    """Return the number of the lane that each of 201 dealt rows goes to."""
    permuted = np.random.Generator(np.random.PCG64([4, 201])).permutation(201)
    owner = {row: number for number, lane in enumerate(plan.lanes) for row in lane_rows(plan, lane, 201, seed=4)}
    return np.array([owner[row] for row in permuted])


def test_clients_of_unequal_data_are_told_how_to_go_through_them_alike() -> None:
    """x has 400 rows, y 100, and both take 10 steps of 8 samples between averages; with 10 and 2 there is no more to
    say, nor where the ratio is small, or nothing is averaged."""
    x, y = (
        Lane(
            name=n,
            segments=(
                replace(PLAN.lanes[0].segments[0], shares=(Share(device=f"d{n}", samples=PLAN.micro_batch_samples),)),
            ),
        )
        for n in "xy"
    )
    plan = replace(PLAN, micro_batches=1, lanes=(x, y), average_every_rounds=10)
    said = uneven_passes(plan, {"dx": 400, "dy": 100})
    assert "with strategy.options.local_rounds {y: 2} all" in said
    assert f"y goes {10 * PLAN.micro_batch_samples / 100:.3g} times through its data and x" in said
    assert uneven_passes(replace(plan, lanes=(x, replace(y, rounds=2))), {"dx": 400, "dy": 100}) == ""
    assert uneven_passes(plan, {"dx": 190, "dy": 100}) == "" == uneven_passes(plan, {"dx": 400, "dy": 0})
    assert uneven_passes(replace(plan, average_every_rounds=0), {"dx": 400, "dy": 100}) == ""


def test_a_plan_that_follows_keeps_the_dealing_of_its_lanes() -> None:
    """Samples are dealt anew only where a lane is new, has another number of micro-batches, or owns no rows."""
    lanes = [replace(PLAN.lanes[0], name=name) for name in "xyz"]
    first = replace(PLAN, micro_batches=3, lanes=tuple(lanes), average_every_rounds=2)
    fewer = replace(first, lanes=tuple(lanes[1:]))
    assert dealing_plan(first, fewer) is first and dealing_plan(first, replace(first, lanes=(lanes[2],))) is first
    rests = replace(
        first,
        average_every_rounds=10,
        lanes=(lanes[0], *(replace(lane, rounds=n) for lane, n in zip(lanes[1:], (2, 5), strict=True))),
    )
    left = replace(rests, lanes=(replace(lanes[1], rounds=4), lanes[2]))
    assert dealing_plan(rests, left) is rests, "in the proportions of before"
    others = (
        replace(fewer, lanes=(lanes[1], replace(lanes[2], rounds=1))),
        replace(fewer, lanes=(*fewer.lanes, replace(lanes[0], name="w"))),
        replace(fewer, lanes=(lanes[1], replace(lanes[2], micro_batches=2))),
        replace(PLAN, micro_batches=3),
    )
    assert all(dealing_plan(first, other) is other for other in others)
    assert dealing_plan(None, fewer) is fewer and dealing_plan(replace(PLAN, micro_batches=3), fewer) is fewer
    collected = replace(first, average_every_rounds=0, collector="s")
    assert dealing_plan(collected, fewer) is fewer


def test_lanes_of_a_collector_take_pieces_of_one_batch() -> None:
    """An epoch of all lanes together has every row once, and a lane meets other rows in the next epoch; where data are
    local, each lane draws from its own."""
    lanes = tuple(replace(PLAN.lanes[0], name=name) for name in "xyz")
    whole = replace(PLAN, micro_batches=2, lanes=lanes, collector="s")
    rows = [lane_rows(whole, lane, 48, seed=4) for lane in whole.lanes]
    assert all(np.array_equal(each, np.arange(48)) for each in rows)

    def batch(lane: Lane, round: int) -> list[int]:
        return lane_batch(whole, lane, np.arange(48), 4, round).tolist()

    epoch = [row for round in range(2) for lane in whole.lanes for row in batch(lane, round)]
    assert sorted(epoch) == list(range(48))
    first, second = ({row for round in rounds for row in batch(lanes[0], round)} for rounds in ((0, 1), (2, 3)))
    assert len(first) == len(second) == 16 and first != second
    own = lane_batch(whole, lanes[1], np.arange(20), 4, 0, local=True)
    assert np.array_equal(own, batch_indices(20, 8, lane_seed(whole, lanes[1], 4), 0))
