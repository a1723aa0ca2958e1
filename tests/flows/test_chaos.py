"""`fleetune chaos`: the faults that are drawn, and what counts as the same end."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from fleetune.contracts import json_io
from fleetune.contracts.metrics import RoundMetrics, TrainingMetrics
from fleetune.contracts.plan import Lane, Plan, Segment, Share
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import Refused
from fleetune.monitoring import Event
from fleetune.training.checkpoints import MODEL, CheckpointMark, FileDigest
from fleetune.training.faults import CUT, GPU_ERROR, KILL, KINDS, NEXT, POINTS, SEVER, Fault, happened, leave_mark
from flows.chaos.comparison import LIMIT, Check, Trained, compare
from flows.chaos.places import Places
from flows.chaos.rehearsal import ChaosRequest, pace_s, rounds_for
from flows.chaos.schedule import Schedule, draw
from flows.chaos.throughput import (
    Throughput,
    exact_rounds,
    intervals,
    lost_by_fault,
    never_undisturbed,
    read_events,
    throughput,
)

DEVICES = ("a", "b", "c")

DRAWN = set(KINDS) - {GPU_ERROR}
"""Kinds of faults that may befall any device; to the others the failure of a GPU is that of its process."""


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 62), devices=st.integers(2, 5))
def test_faults_leave_a_device(seed: int, count: int, devices: int) -> None:
    """As many faults are drawn as are asked for, the same ones from the same seed. A device meets none after the one
    that takes it, until the coordinator's end brings it back, and the last one is never taken. Whom a link that does
    not come back takes is not known: then only the one before it is left for certain.
    """
    names = tuple("abcde"[:devices])
    places = alike(names)
    drawn = draw(places, 65, count, seed)
    assert drawn == draw(places, 65, count, seed) and drawn.count == count
    living = set(names)
    ends = {end.number for end in drawn.coordinator}
    by_number = {fault.number: fault for fault in drawn.devices}
    assert sorted({*ends, *by_number}) == list(range(count))
    for number in range(count):
        if number in ends:
            living = set(names)
            continue
        fault = by_number[number]
        assert fault.device in living and fault.kind in KINDS and 0 < fault.round < 65
        if fault.kind in (CUT, SEVER):
            assert len(living) > 1, "it has somebody to send to"
        living -= {fault.device} if fault.takes_device else set()
        living = {fault.device} if fault.kind == SEVER else living
        assert living


def alike(names: tuple[str, ...]) -> Places:
    """Return devices that all may be lost, and all send to each other."""
    return Places(devices=names, takeable=names)


def test_every_kind_is_drawn_at_every_point() -> None:
    """Sixty-two faults are no sixty-two of one kind; some come during the recovery from another one. Points that only
    some devices pass, or only in some rounds, are drawn there.
    """
    drawn = draw(alike(DEVICES), 200, 62, 1)
    assert {fault.kind for fault in drawn.devices} >= {"kill", "freeze", "cut", "out of memory"} and drawn.coordinator
    places = replace(
        alike(DEVICES),
        grouped={"a", "b"},
        savers={"a", "c"},
        backed_up={"b"},
        checkpoint_every_rounds=10,
        backup_every_rounds=4,
    )
    found = [fault for seed in range(20) for fault in draw(places, 200, 62, seed).devices]
    assert {fault.kind for fault in found} == DRAWN and {fault.point for fault in found} == {*POINTS, NEXT}
    passed = {"all-reduce": "ab", "checkpoint": "ac", "backup": "b"}
    assert all(fault.device in passed.get(fault.point, "abc") for fault in found)
    assert all(fault.round % 10 == 9 for fault in found if fault.point == "checkpoint")
    assert all(fault.round % 4 == 3 for fault in found if fault.point == "backup")


def test_a_kill_is_not_always_in_a_checkpoint_where_every_round_has_one() -> None:
    """Bug: it was drawn at no other point then."""
    places = replace(alike(DEVICES), savers=set(DEVICES), checkpoint_every_rounds=1)
    found = {fault.point for seed in range(9) for fault in draw(places, 200, 62, seed).devices if fault.kind == KILL}
    assert found >= {"forward", "backward", "prepared", "commit", "checkpoint"}


UNITS = ("u", "v", "w")


def segment(unit: str, *devices: str) -> Segment:
    """Return a segment of one unit."""
    return Segment(units=(unit,), shares=tuple(Share(device=name, samples=1) for name in devices), warmup=1)


def lane(name: str, *devices: str) -> Lane:
    """Return a lane whose segments have one device each."""
    return Lane(name=name, segments=tuple(segment(unit, each) for unit, each in zip(UNITS, devices, strict=False)))


@pytest.mark.parametrize(
    ("lanes", "more", "takeable", "kinds"),
    [
        ([lane("main", "a", "b")], {}, "ab", DRAWN),
        ([lane("x", "x", "h", "x"), lane("y", "y", "h", "y")], {"average_every_rounds": 2}, "h", DRAWN - {SEVER}),
        ([lane("x", "x"), lane("y", "y")], {"collector": "s"}, "xy", DRAWN - {CUT, SEVER}),
        ([lane("x", "x", "y"), lane("y", "y", "x")], {"average_every_rounds": 2}, "", {"cut", "freeze"}),
    ],
    ids=["one lane", "split learning", "a collector", "no helper of its own"],
)
def test_only_a_device_without_which_the_weights_are_the_same_is_taken(
    lanes: list[Lane], more: dict[str, Any], takeable: str, kinds: set[str]
) -> None:
    """Samples that a lane owns are lost with its device, but where a collector waits for it."""
    made = Plan(strategy="test", micro_batch_samples=1, micro_batches=1, lanes=tuple(lanes), **more)
    places = Places.of(made, TrainingRequest(rounds=65, batch_samples=1, micro_batch_samples=1))
    assert set(places.takeable) == set(takeable)
    found = [fault for seed in range(20) for fault in draw(places, 65, 62, seed).devices]
    assert {fault.kind for fault in found} == kinds
    assert all(fault.device in takeable for fault in found if fault.takes_device)


def test_blocks_that_are_dealt_anew_by_measured_times_are_refused() -> None:
    """What such a plan trains differs from training to training."""
    whole = [Segment(units=UNITS, shares=(Share(device=d, samples=1),), warmup=1, trains=(u,)) for u, d in ("ux", "vy")]
    made = Plan(
        strategy="lola-deft",
        micro_batch_samples=1,
        micro_batches=1,
        lanes=tuple(Lane(name=each.trains[0], segments=(each,)) for each in whole),
        collector="s",
        replan_every_rounds=3,
    )
    with pytest.raises(Refused, match="set its option replan_every_rounds to 0"):
        Places.of(made, TrainingRequest(rounds=9, batch_samples=1, micro_batch_samples=1))


@pytest.mark.parametrize(
    ("devices", "rounds", "count", "said"),
    [
        (DEVICES, 64, 62, "62 faults need 65 rounds, one each, and training.rounds is 64; give at most 61 faults"),
        (DEVICES, 9, 0, "faults must be a number above 0"),
        (("a",), 9, 1, "the plan uses one device only; a device can be lost only where another one is left"),
    ],
)
def test_what_cannot_be_drawn(devices: tuple[str, ...], rounds: int, count: int, said: str) -> None:
    """The refusal names what was given and what is possible."""
    with pytest.raises(Refused, match=said):
        draw(alike(devices), rounds, count, 0)


def test_a_fault_happens_once(tmp_path: Path) -> None:
    """At its point in its round; at any point once it is overdue; and never again, whatever process comes there."""
    fault = Fault(number=7, device="a", kind="kill", point="backward", round=3)
    due = [(point, round) for round in (2, 3, 4, 5) for point in POINTS if fault.is_due(point, round)]
    assert due == [("backward", 3), ("backward", 4), *((point, 5) for point in POINTS)]
    assert happened(tmp_path, 7) is None
    assert leave_mark(tmp_path, 7, "backward", 3) and not leave_mark(tmp_path, 7, "forward", 5)
    mark = happened(tmp_path, 7)
    assert mark is not None and (mark.point, mark.round) == ("backward", 3)
    assert [path.name for path in tmp_path.iterdir()] == ["0007.json"], "no half written mark is left"


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., Trained]:
    """Makes the result of a training with these losses and this tensor."""

    def make(name: str, losses: list[float], tensor: list[float]) -> Trained:
        state = tmp_path / name / "checkpoint" / "state"
        state.mkdir(parents=True)
        save_file({MODEL + "w": torch.tensor(tensor)}, state / "all.safetensors")
        digest = {"all.safetensors": FileDigest.of(state / "all.safetensors")}
        json_io.write(CheckpointMark(round=len(losses), files=tuple(digest), digests=digest), state / "round.json")
        rounds = tuple(
            RoundMetrics(round=n, loss=loss, gradient_norm=None, learning_rate=0.1, round_s=1.0)
            for n, loss in enumerate(losses)
        )
        metrics = TrainingMetrics(
            rounds=rounds,
            timeline=(),
            peak_memory_bytes=(),
            busy_s=(),
            link_bytes=(),
            median_round_s=1.0,
            wall_s=1.0,
            resumed_from_round=0,
        )
        json_io.write(metrics, tmp_path / name / "metrics" / "training.json")
        (tmp_path / name / "metrics" / "events.jsonl").write_text("")
        return Trained(tmp_path / name)

    return make


def failed(checks: tuple[Check, ...]) -> list[str]:
    """Return the names of what does not hold."""
    return [check.name for check in checks if not check.ok]


def test_what_differs_is_named(trained: Callable[..., Trained]) -> None:
    """A round too many, another loss and another weight are found, and rounding is none of them."""
    whole = trained("whole", [2.0, 1.0], [1.0, 2.0])
    same = trained("same", [2.0, 1.0], [1.0, 2.0])
    assert failed(compare(whole, same, 2, lambda: pytest.fail("nothing differs"))) == []
    rounded = trained("rounded", [2.0, 1.0 + LIMIT / 2], [1.0, 2.0])
    assert failed(compare(whole, rounded, 0, lambda: pytest.fail("that is rounding"))) == []
    assert failed(compare(whole, trained("loss", [2.0, 1.1], [1.0, 2.0]), 0, lambda: None)) == ["losses are equal"]
    assert failed(compare(whole, trained("weight", [2.0, 1.0], [1.0, 2.1]), 0, lambda: None)) == ["weights are equal"]
    missing = trained("missing", [2.0], [1.0, 2.0])
    assert failed(compare(whole, missing, 0, lambda: None)) == ["every round is committed once"]
    twice = trained("twice", [2.0, 1.0], [1.0, 2.0])
    twice.metrics = replace(twice.metrics, rounds=twice.metrics.rounds[:1] * 2)
    assert "every round is committed once" in failed(compare(whole, twice, 0, lambda: None))


def test_not_one_bit_may_differ_while_the_plan_is_the_first_one(trained: Callable[..., Trained]) -> None:
    """Rounding is allowed from the round on that another plan trained; the weights are exact if there is none."""
    whole = trained("whole", [2.0, 1.0], [1.0, 2.0])
    rounded = trained("rounded", [2.0, 1.0 + LIMIT / 2], [1.0, 2.0 + LIMIT / 2])
    assert failed(compare(whole, rounded, 1, lambda: pytest.fail("that is rounding"))) == []
    checks = compare(whole, rounded, 2, lambda: pytest.fail("no other plan has rounded"))
    assert failed(checks) == ["losses are equal", "weights are equal"]
    assert "loss of round 1 differs by 5.0e-06, allowed no bit" in checks[1].found


def test_the_limit_is_what_additions_in_another_order_change(trained: Callable[..., Trained]) -> None:
    """Where rounding grows beyond the limit, twenty times of it is allowed, and no more; a round in which it happens to
    be small is allowed what the rounds before were.
    """
    whole, other = trained("whole", [2.0, 1.0], [1.0, 2.0]), trained("other", [2.0, 1.0001], [1.0, 2.0001])
    near, far = trained("near", [2.0, 1.001], [1.0, 2.001]), trained("far", [2.0, 1.01], [1.0, 2.01])
    assert failed(compare(whole, near, 1, lambda: other)) == []
    assert failed(compare(whole, far, 1, lambda: other)) == ["losses are equal", "weights are equal"]
    three, crossing = trained("three", [2.0, 1.0, 1.0], [1.0]), trained("crossing", [2.0, 1.0001, 1.0], [1.0001])
    assert failed(compare(three, trained("late", [2.0, 1.0, 1.001], [1.0]), 0, lambda: crossing)) == []
    assert failed(compare(three, trained("early", [2.001, 1.0, 1.0], [1.0]), 0, lambda: crossing)) != []


def log(*happened: tuple[float, str] | tuple[float, str, int] | tuple[float, str, int, tuple[str, ...]]) -> list[Event]:
    """Return the events of a log: time, kind, round and devices."""
    fields = ("at_s", "event", "round", "devices")
    return [Event(**dict(zip(fields, each, strict=False))) for each in happened]  # type: ignore[arg-type]


ALL, ONE = ("a", "b"), ("a",)
WHOLE = log((0, "started"), (5, "committed", 0), (6, "committed", 1), (7, "committed", 2), (8.0, "ended"))
LOST = log(
    (0, "started"), (5, "committed", 0), (6, "committed", 1), (6.5, "lost"), (7, "resuming", 2, ONE),
    (10, "committed", 2), (12, "committed", 3), (12.5, "joined"), (13, "resuming", 4, ALL), (15, "committed", 4),
)  # fmt: skip


def test_throughput_is_that_of_the_plans_in_force() -> None:
    """A round counts as long as its plan's undisturbed rounds take: 1 s on two devices, 2 s on one. Of 10 s from the
    first commit to the last, 2 s passed beside the loss of a device and 2 s beside its return."""
    found = throughput(list(intervals(WHOLE, ALL)), list(intervals(LOST, ALL)), 2)
    assert found is not None and found.ratio == found.ratio_of_devices == pytest.approx(6 / 10)
    assert (found.lost_s, found.lost_s_per_fault) == (4.0, 2.0)
    assert throughput(list(intervals(WHOLE, ALL)), list(intervals(WHOLE, ALL, {0})), 1) == Throughput(
        ratio=1.0, ratio_of_devices=1.0, lost_s=0.0, lost_s_per_fault=0.0
    )
    never = throughput(list(intervals(WHOLE, ALL)), list(intervals(WHOLE, ALL, {0, 1, 2})), 3)
    assert never is not None and (never.ratio, never.pace, never.ratio_at_pace) == (1.0, 1.0, 1.0), "no round is free"
    assert throughput([], [], 1) is None


def test_a_plan_that_ran_no_undisturbed_round_is_measured_by_itself() -> None:
    """Bug: a device that comes back after one round leaves its plan no undisturbed one, and that round, which takes 3 s
    on one device, counted as one on two: of 3.5 s, 2.5 as lost."""
    met = log(
        (0, "started"), (5, "committed", 0), (6, "committed", 1), (6.4, "lost"), (6.5, "resuming", 2, ONE),
        (9.5, "committed", 2), (9.5, "joined"), (9.5, "resuming", 3, ALL), (10.5, "committed", 3),
    )  # fmt: skip
    alone, faulty = list(intervals(WHOLE, ALL)), list(intervals(met, ALL))
    assert never_undisturbed(alone, faulty) == [ONE]
    found = throughput(alone, faulty, 1)
    assert found is not None and found.lost_s == 2.5
    others = list(intervals(log((0, "started"), (5, "committed", 0), (8, "committed", 1), (11, "committed", 2)), ONE))
    found = throughput(alone, faulty, 1, others)
    assert found is not None and found.lost_s == 0.5 and found.ratio == found.ratio_at_pace == pytest.approx(5 / 5.5)
    assert lost_by_fault(alone, faulty, {0: 2}, others) == {0: 0.5}
    assert never_undisturbed(alone, list(intervals(LOST, ALL))) == []


def test_a_machine_that_others_slow_is_told_apart() -> None:
    """Undisturbed rounds take 2 s beside faults, and 1 s without: of 8 s, 3 are what the devices could give on the
    machine as it was without faults, and 6 on the machine as it was."""
    met = log(
        (0, "started"), (5, "committed", 0), (7, "committed", 1), (8, "lost"), (9, "resuming", 2, ALL),
        (11, "committed", 2), (13, "committed", 3),
    )  # fmt: skip
    found = throughput(list(intervals(WHOLE, ALL)), list(intervals(met, ALL)), 1)
    assert found is not None and (found.pace, found.ratio) == (2.0, 3 / 8)
    assert found.ratio_at_pace == 6 / 8


def test_what_each_fault_has_cost_is_told() -> None:
    """A fault is charged until the next one: the loss in round 2 with the 2 s beside it and, as nothing else happened,
    with the 2 s beside the return; a fault in round 4 takes those. One that did not slow anything costs nothing."""
    alone, met = list(intervals(WHOLE, ALL)), list(intervals(LOST, ALL))
    assert lost_by_fault(alone, met, {7: 2}) == {7: 4.0}
    assert lost_by_fault(alone, met, {7: 2, 8: 4}) == {7: 2.0, 8: 2.0}
    assert lost_by_fault(alone, met, {7: 2, 9: 50}) == {7: 4.0, 9: 0.0}
    assert lost_by_fault([], [], {1: 1}) == {1: 0.0}


def test_rounds_of_a_frozen_device_and_of_no_undisturbed_plan_hide_nothing() -> None:
    """A moment's freeze leaves no event, but its mark: its round says nothing of what devices could give. A plan that
    ran no undisturbed round counts as the fastest one.
    """
    (_, slow, _, _) = [each.disturbed for each in intervals(LOST, ALL, {2})][:4]
    assert slow and [each.disturbed for each in intervals(LOST, ALL, {3})] == [False, True, True, True]
    found = throughput(list(intervals(WHOLE, ALL)), list(intervals(LOST, ALL, {2, 3})), 2)
    assert found is not None and found.ratio == pytest.approx(4 / 10)


def test_the_end_of_the_coordinator_is_told_apart() -> None:
    """All devices end with it, so that nothing was left that could give anything. Rounds that are run again from the
    checkpoint are no progress."""
    ended = log(
        (0, "started"), (5, "committed", 0), (6, "committed", 1), (9, "started"), (12, "committed", 1),
        (13, "committed", 2), (14, "committed", 3),
    )  # fmt: skip
    found = throughput(list(intervals(WHOLE, ALL)), list(intervals(ended, ALL)), 0)
    assert found is not None and found.ratio == pytest.approx(3 / 9) and found.ratio_of_devices == 1.0
    assert found.lost_s == pytest.approx(6) and found.lost_s_per_fault == 0.0


def test_rounds_before_another_plan_are_exact() -> None:
    """A round that is run again by the same plan is; what follows another plan is not, whichever plan trains it."""
    assert exact_rounds(LOST, ALL, 5) == 2
    again = log((0, "started"), (5, "committed", 0), (6, "resuming", 1, ALL), (7, "committed", 1), (8, "started"))
    assert exact_rounds(again, ALL, 2) == 2 and exact_rounds(WHOLE, ALL, 3) == 3


def test_a_line_that_a_killed_coordinator_could_not_finish_is_passed_over(tmp_path: Path) -> None:
    """The next start closes it and goes on."""
    path = tmp_path / "events.jsonl"
    path.write_text(
        '{"at_s": 1, "event": "committed", "round": 0}\n{"at_s": 2, "eve\n{"at_s": 3, "event": "started"}\n'
    )
    assert [each.event for each in read_events(path)] == ["committed", "started"]


@pytest.mark.parametrize(("minutes", "rounds"), [(None, 40), (2.0, 120), (0.01, 6)])
def test_rounds_by_the_pace_of_a_short_training(minutes: float | None, rounds: int) -> None:
    """A training of so many minutes has as many rounds of 1 s, and at least one for each fault."""
    request = ChaosRequest(faults=3, seed=1, minutes=minutes)
    assert rounds_for(request, 40, lambda: pace_s(intervals(WHOLE, ALL))) == rounds


def test_a_schedule_is_read_back() -> None:
    """The process that meets the faults reads them from a file."""
    drawn = draw(alike(DEVICES), 65, 62, 3)
    assert json_io.load(Schedule, json_io.dump(drawn), "schedule") == drawn
