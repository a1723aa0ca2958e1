"""Pipelines against hand-drawn timelines, invariants, and an independent reference implementation."""

from collections import defaultdict
from itertools import pairwise

from hypothesis import given, settings

from fleetune.clock import Clock, forecast
from fleetune.clock.pipeline_simulation import DEADLOCK, simulate
from fleetune.contracts.plan import REDUCE, parse_action
from fleetune.program import program_of
from fleetune.program.execution import carry_out
from tests.support.clock import reference
from tests.support.clock.pipelines import Pipeline, layout_of, pipelines, planned, spans, uniform
from tests.support.clock.ticks import drawn, picture, ticks

HAND_DRAWN = """
    0.0 01234....a.b.c.d.e
    1.0 ..012..a3b4c.d.e..
    2.0 ....0a1b2c3d4e....
0.0>1.0 .01234............
1.0>0.0 ........a.b.c.d.e.
1.0>2.0 ...012...3.4......
2.0>1.0 ......a.b.c.d.e...
"""


def test_three_segments_five_micro_batches_as_drawn_by_hand() -> None:
    """Three stages of one tick each way, cuts of one tick, warm-ups 5, 3, 1 give the hand-drawn round."""
    pipeline = uniform([[(1, 1, 1)]] * 3, warmups=[5, 3, 1], cut_bytes=[(1, 1)] * 2, micro_batches=5)
    assert picture(*planned(pipeline)) == drawn(HAND_DRAWN)
    assert simulate(layout_of(pipeline), {}).round_ns == 18


def test_a_blocked_transfer_is_overtaken_and_occupies_no_port() -> None:
    """0.1's part for 1.0 waits for 1.0's ingress; its part for 1.1 goes first, and only then the older one."""
    pipeline = uniform(
        [[(1, 1, 1), (3, 1, 1)], [(2, 1, 1), (2, 1, 1)]], warmups=[1, 1], cut_bytes=[(1, 0)], micro_batches=1
    )
    shown = picture(*planned(pipeline))
    assert [line for line in shown if line.strip().startswith("0") and ">" in line] == drawn("""
0.0>1.0 .0.....
0.1>1.0 ...0...
0.1>1.1 .00....
""")


def test_latency_occupies_no_port() -> None:
    """With a latency of 3 ticks, transfers still follow each other tick by tick and arrive 3 ticks after."""
    pipeline = uniform([[(1, 1, 1)]] * 2, warmups=[3, 1], cut_bytes=[(1, 1)], micro_batches=3, latency=3)
    assert picture(*planned(pipeline)) == drawn("""
    0.0 012........a.b.c
    1.0 .....0a1b2c.....
0.0>1.0 .012............
1.0>0.0 .......a.b.c....
""")


def test_an_overlap_of_no_bytes_is_still_sent() -> None:
    """A cut of 0 bytes holds ports for no time, yet its arrival waits for the latency."""
    pipeline = uniform([[(1, 1, 1)]] * 2, warmups=[1, 1], cut_bytes=[(0, 0)], micro_batches=1, latency=2)
    found = forecast(*planned(pipeline))
    sent = [(row.bytes, ticks(row.start_s), ticks(row.end_s)) for row in found.rows if row.is_transfer]
    assert sent == [(0, 1, 1), (0, 5, 5)]
    assert ticks(found.round_s) == simulate(layout_of(pipeline), {}).round_ns == 8


def test_samples_that_do_not_overlap_send_nothing() -> None:
    """With two halves on each side of a cut, only equal halves exchange data."""
    pipeline = uniform([[(1, 1, 1)] * 2] * 2, warmups=[1, 1], cut_bytes=[(1, 1)], micro_batches=1)
    sent = [row for row in forecast(*planned(pipeline)).rows if row.is_transfer]
    assert {row.device for row in sent if "F" in row.action} == {"0.0>1.0", "0.1>1.1"}


def test_a_group_sums_its_gradients_in_a_ring_after_its_slowest_member() -> None:
    """Three members, 6 bytes, latency 1: 2·2·(1 + 6/3) = 12 ticks after the slowest one's last backward."""
    pipeline = uniform(
        [[(1, 1, 1), (1, 2, 2), (1, 1, 1)]], warmups=[1], cut_bytes=[], micro_batches=2, latency=1, trainable_bytes=6
    )
    sums = [row for row in forecast(*planned(pipeline)).rows if parse_action(row.action).letter == REDUCE]
    assert [(ticks(row.start_s), ticks(row.end_s)) for row in sums] == [(8, 20)] * 3
    assert simulate(layout_of(pipeline), {}).round_ns == 20


def test_warmups_that_grow_towards_the_end_deadlock_with_positions() -> None:
    """Warm-ups 1, 2 deadlock: the last stage wants two forwards before the first gradient, the first sends only one."""
    pipeline = uniform([[(1, 1, 1)]] * 2, warmups=[1, 2], cut_bytes=[(1, 1)], micro_batches=3)
    assert simulate(layout_of(pipeline), {}).round_ns == DEADLOCK
    plan, _, profile = planned(pipeline)
    assert carry_out(program_of(plan, profile)).deadlocked == {"0.0": 1, "1.0": 1}


@settings(max_examples=300, deadline=None)
@given(pipelines())
def test_the_reference_implementation_agrees_on_every_start_and_end(pipeline: Pipeline) -> None:
    """The reference implementation gives the same tasks, transfers and round, timeline and compiled loop alike."""
    round_ns, log = reference.play(pipeline)
    plan, fleet, profile = planned(pipeline)
    clock = Clock(fleet, profile)
    found = clock.forecast(plan)
    assert spans(found.rows) == log
    assert found.round_s == clock.round_s(plan) == round_ns / 1e9
    assert simulate(layout_of(pipeline), {}).round_ns == round_ns


@settings(max_examples=150, deadline=None)
@given(pipelines())
def test_every_round_keeps_the_invariants(pipeline: Pipeline) -> None:
    """Devices and ports do one thing at a time, inputs precede tasks, and each micro-batch runs once each way."""
    played = spans(forecast(*planned(pipeline)).rows)
    tasks = {each[1:5]: each[5:] for each in played if each[0] == "task"}
    seats = [(p, place) for p, stage in enumerate(pipeline.stages) for place in range(len(stage.members))]
    assert sorted(tasks) == sorted(
        (*seat, letter, m) for seat in seats for letter in "FB" for m in range(pipeline.micro_batches)
    )
    busy = defaultdict(list)
    for (*seat, letter, m), ends in tasks.items():
        busy["device", *seat].append(ends)
        if letter == "B":
            assert tasks[*seat, "F", m][1] <= ends[0]
    for sender, receiver, letter, m, _, start, end in (each[1:] for each in played if each[0] == "transfer"):
        busy["egress", *sender].append((start, end))
        busy["ingress", *receiver].append((start, end))
        latency_s = pipeline.latency_s[seats.index(sender)][seats.index(receiver)]
        assert tasks[*sender, letter, m][1] <= start
        assert end + ticks(latency_s) <= tasks[*receiver, letter, m][0]
    for each in busy.values():
        each.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(each))
