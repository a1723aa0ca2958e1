"""The pipeline simulation against hand-drawn timelines, invariants, and an independent reference implementation."""

from collections import defaultdict

from hypothesis import given, settings

from fleetune.clock import Pipeline, PipelineTrace
from fleetune.clock.pipeline_simulation import simulate
from tests.support.clock import reference
from tests.support.clock.pipelines import picture, pipelines, uniform

HAND_DRAWN = """
    0.0 01234....a.b.c.d.e
    1.0 ..012..a3b4c.d.e..
    2.0 ....0a1b2c3d4e....
0.0>1.0 .01234............
1.0>0.0 ........a.b.c.d.e.
1.0>2.0 ...012...3.4......
2.0>1.0 ......a.b.c.d.e...
"""


def drawn(text: str) -> list[str]:
    """Split a drawing into lines."""
    return text.strip("\n").splitlines()


def test_three_segments_five_micro_batches_as_drawn_by_hand() -> None:
    """Three stages of one tick each way, cuts of one tick, warm-ups 5, 3, 1 give the hand-drawn round."""
    pipeline = uniform([[(1, 1, 1)]] * 3, warmups=[5, 3, 1], cut_bytes=[(1, 1)] * 2, micro_batches=5)
    played = simulate(pipeline)
    assert picture(played, 18) == drawn(HAND_DRAWN)
    assert played.round_ns == 18


def test_a_blocked_transfer_is_overtaken_and_occupies_no_port() -> None:
    """0.1's part for 1.0 waits for 1.0's ingress; its part for 1.1 goes first, and only then the older one."""
    pipeline = uniform(
        [[(1, 1, 1), (3, 1, 1)], [(2, 1, 1), (2, 1, 1)]], warmups=[1, 1], cut_bytes=[(1, 0)], micro_batches=1
    )
    shown = picture(simulate(pipeline), 8)
    assert [line for line in shown if line.strip().startswith("0") and ">" in line] == drawn("""
0.0>1.0 .0......
0.1>1.0 ...0....
0.1>1.1 .00.....
""")


def test_latency_occupies_no_port() -> None:
    """With a latency of 3 ticks, transfers still follow each other tick by tick and arrive 3 ticks after."""
    pipeline = uniform([[(1, 1, 1)]] * 2, warmups=[3, 1], cut_bytes=[(1, 1)], micro_batches=3, latency=3)
    assert picture(simulate(pipeline), 16) == drawn("""
    0.0 012........a.b.c
    1.0 .....0a1b2c.....
0.0>1.0 .012............
1.0>0.0 .......a.b.c....
""")


def test_an_overlap_of_no_bytes_is_still_sent() -> None:
    """A cut of 0 bytes holds ports for no time, yet its arrival waits for the latency."""
    pipeline = uniform([[(1, 1, 1)]] * 2, warmups=[1, 1], cut_bytes=[(0, 0)], micro_batches=1, latency=2)
    played = simulate(pipeline)
    assert [(t.bytes, t.start_ns, t.end_ns, t.arrival_ns) for t in played.transfers] == [(0, 1, 1, 3), (0, 5, 5, 7)]
    assert played.round_ns == 8


def test_samples_that_do_not_overlap_send_nothing() -> None:
    """With two halves on each side of a cut, only equal halves exchange data."""
    pipeline = uniform([[(1, 1, 1)] * 2] * 2, warmups=[1, 1], cut_bytes=[(1, 1)], micro_batches=1)
    assert {(t.sender, t.receiver) for t in simulate(pipeline).transfers if t.letter == "F"} == {
        ((0, 0), (1, 0)),
        ((0, 1), (1, 1)),
    }


def test_a_group_sums_its_gradients_in_a_ring_after_its_slowest_member() -> None:
    """Three members, 6 bytes, latency 1: 2·2·(1 + 6/3) = 12 ticks after the slowest one's last backward."""
    pipeline = uniform(
        [[(1, 1, 1), (1, 2, 2), (1, 1, 1)]], warmups=[1], cut_bytes=[], micro_batches=2, latency=1, trainable_bytes=6
    )
    played = simulate(pipeline)
    assert [(r.start_ns, r.end_ns) for r in played.reduces] == [(8, 20)]
    assert played.round_ns == 20


def test_warmups_that_grow_towards_the_end_deadlock_with_positions() -> None:
    """Warm-ups 1, 2 deadlock: the last stage wants two forwards before the first gradient, the first sends only one."""
    pipeline = uniform([[(1, 1, 1)]] * 2, warmups=[1, 2], cut_bytes=[(1, 1)], micro_batches=3)
    assert simulate(pipeline).deadlocked == ((0, 0, 1), (1, 0, 1))


@settings(max_examples=300, deadline=None)
@given(pipelines())
def test_the_reference_implementation_agrees_on_every_start_and_end(pipeline: Pipeline) -> None:
    """The reference implementation gives the same tasks, transfers and round."""
    played = simulate(pipeline)
    round_ns, log = reference.play(pipeline)
    assert {("task", *task) for task in played.tasks} | {("transfer", *t) for t in played.transfers} == log
    assert played.round_ns == round_ns


@settings(max_examples=150, deadline=None)
@given(pipelines())
def test_every_round_keeps_the_invariants(pipeline: Pipeline) -> None:
    """Devices and ports do one thing at a time, inputs precede tasks, and each micro-batch runs once each way."""
    played = simulate(pipeline)
    busy = defaultdict(list)
    for task in played.tasks:
        busy["device", task.stage, task.place].append((task.start_ns, task.end_ns))
    for t in played.transfers:
        busy["egress", *t.sender].append((t.start_ns, t.end_ns))
        busy["ingress", *t.receiver].append((t.start_ns, t.end_ns))
    for spans in busy.values():
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
    assert_each_once(pipeline, played)
    assert_needs_are_kept(played)


def assert_each_once(pipeline: Pipeline, played: PipelineTrace) -> None:
    """Every member runs every micro-batch forward once and backward once."""
    done = sorted((t.stage, t.place, t.letter, t.micro_batch) for t in played.tasks)
    seats = [(p, place) for p, stage in enumerate(pipeline.stages) for place in range(len(stage.members))]
    assert done == sorted(
        (*seat, letter, m) for seat in seats for letter in "FB" for m in range(pipeline.micro_batches)
    )


def assert_needs_are_kept(played: PipelineTrace) -> None:
    """No transfer leaves before its task ended, no task starts before all that was sent for it arrived."""
    when = {(t.stage, t.place, t.letter, t.micro_batch): t for t in played.tasks}
    for t in played.transfers:
        assert when[*t.sender, t.letter, t.micro_batch].end_ns <= t.start_ns
        assert t.arrival_ns <= when[*t.receiver, t.letter, t.micro_batch].start_ns
    for task in played.tasks:
        if task.letter == "B":
            assert when[task.stage, task.place, "F", task.micro_batch].end_ns <= task.start_ns
