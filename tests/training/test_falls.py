"""The table of falls: whatever befalls devices, and wherever in a round, a training ends as one that nothing befell.

Faults happen at named points of the protocol (`fleetune.training.faults`). After each, every sample of the epoch was
used once, losses and weights are those of a run without the fault, and no process is left.
"""

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts.plan import Backup, LinkUse, Plan
from fleetune.errors import TryAgain
from fleetune.launching import Command, Job
from fleetune.monitoring import follow
from fleetune.monitoring.event_summary import EventSummary
from fleetune.planning.revision import Reviser
from fleetune.planning.strategy import Problem
from fleetune.training import liveness, revisions
from fleetune.training.checkpoints import checkpoint_folder, newest_complete
from fleetune.training.commit_log import read_commits
from fleetune.training.faults import (
    ALL_REDUCE,
    BACKUP,
    BACKWARD,
    CHECKPOINT,
    COMMIT,
    CUT,
    FORWARD,
    FREEZE,
    GPU_ERROR,
    KILL,
    MEMORY,
    MOVE,
    PREPARED,
    SEVER,
    Fault,
    FaultyLauncher,
    happened,
)
from tests.support.training.falls import (
    ROUNDS,
    TRAINING,
    Trained,
    assert_nothing_lost,
    small_bert,
    table_plan,
    undisturbed,
)
from tests.support.training.recording import Recording
from tests.support.training.runs import Prepared, final_state, run_plan, training_task

FROZEN_S = 0.3
NARROW = 1e-3
"""Share of a link at which all but small messages are sent in pieces."""


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A small BERT with dropout."""
    return small_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def whole(ready: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A training by the table's plan that nothing befalls."""
    return undisturbed(ready, tmp_path_factory.mktemp("whole"))


def backed_up(made: Plan) -> Plan:
    """The plan, with what d2 alone holds on d0, and the group's on d2."""
    backups = (Backup(lane="main", segment=0, holder="d2"), Backup(lane="main", segment=1, holder="d0"))
    return replace(made, backup_every_rounds=1, backups=backups)


@dataclass(frozen=True)
class Meeting:
    """A training that met its faults."""

    trained: Trained
    events: EventSummary
    jobs: Sequence[Job]


def meet(
    ready: Prepared, made: Plan, folder: Path, *faults: Fault, launcher: Recording | None = None, **changes: Any
) -> Meeting:
    """Train while these faults happen, each at its point."""
    recording = launcher or Recording()
    task = training_task(ready, made, TRAINING, folder)
    reviser = Reviser(problem=Problem.of(task.plan, task.fleet, task.profile, ready.seed))
    faulty = FaultyLauncher(recording, faults, folder / "marks")
    metrics = run_plan(ready, made, TRAINING, folder, launcher=faulty, revise=reviser, **changes)
    for fault in faults:
        mark = happened(folder / "marks", fault.number)
        beside = range(2 if fault.point in (BACKUP, CHECKPOINT) else 1)  # both go beside the next round
        assert mark is not None and mark.point == fault.point and mark.round - fault.round in beside, (fault, mark)
    events = follow(folder / "output" / "metrics" / "events.jsonl", lambda *_: None, alive=lambda: False)
    return Meeting(Trained(metrics, final_state(folder)), events, recording.jobs)


def fault(device: str, kind: str, point: str, round: int = 2, number: int = 0, **more: Any) -> Fault:
    """Return a fault in the middle of the training."""
    return Fault(number=number, device=device, kind=kind, point=point, round=round, **more)


def told(found: EventSummary) -> list[str]:
    """Return how the training went on, without times."""
    return [each.split(" s: ", 1)[1] for each in found.recoveries]


LOSSES: dict[str, tuple[bool, tuple[Fault, ...], str]] = {
    "killed in a forward": (False, (fault("d0", KILL, FORWARD),), "from round 2 on d1, d2: "),
    "killed in a backward": (False, (fault("d1", KILL, BACKWARD),), "from round 2 on d0, d2: "),
    "killed in the all-reduce": (False, (fault("d1", KILL, ALL_REDUCE),), "from round 2 on d0, d2: "),
    "killed when prepared": (True, (fault("d2", KILL, PREPARED),), " on d0, d1: "),
    "killed before it applies a commit": (False, (fault("d0", KILL, COMMIT),), "from round 3 on d1, d2: "),
    "the only holder, before it applies a commit": (True, (fault("d2", KILL, COMMIT),), "from round [12] on d0, d1: "),
    "killed between two backups": (True, (fault("d2", KILL, BACKUP),), "from round [12] on d0, d1: "),
    "killed in a checkpoint": (True, (fault("d2", KILL, CHECKPOINT, round=3),), " on d0, d1: "),
    "out of memory in a backward": (False, (fault("d1", MEMORY, BACKWARD),), "from round 2 on d0, d2: "),
    "its GPU fails in a forward": (False, (fault("d1", GPU_ERROR, FORWARD),), "from round 2 on d0, d2: "),
    "its GPU fails in a checkpoint": (True, (fault("d2", GPU_ERROR, CHECKPOINT, round=3),), " on d0, d1: "),
    "out of memory in the last checkpoint": (True, (fault("d2", MEMORY, CHECKPOINT, ROUNDS - 1),), " on d0, d1: "),
    "two at once": (
        True,
        (fault("d0", KILL, BACKWARD), fault("d1", KILL, BACKWARD, number=1)),
        " on d2: ",
    ),
    "the only holder, and the holder of its backup": (
        True,
        (fault("d2", KILL, PREPARED, round=3), fault("d0", KILL, ALL_REDUCE, round=3, number=1)),  # one after round 2
        r" d1: the checkpoint is read(.*\n.* on d1: .*)?",  # the second one at once, or when the first is read
    ),
    "a second one in the recovery": (
        True,
        (fault("d0", KILL, FORWARD), fault("d1", KILL, MOVE, number=1)),
        " on d2: ",
    ),
}
"""Name -> whether the plan has backups, the faults, and a pattern of how the training goes on in the end."""


@pytest.mark.parametrize(("backups", "faults", "goes_on"), LOSSES.values(), ids=LOSSES)
def test_a_device_is_lost(
    backups: bool, faults: tuple[Fault, ...], goes_on: str, ready: Prepared, whole: Trained, tmp_path: Path
) -> None:
    """The others go on from the newest version that is whole, and the device is named."""
    made = backed_up(table_plan(ready)) if backups else table_plan(ready)
    found = meet(ready, made, tmp_path, *faults)
    assert all(job.poll() is not None for job in found.jobs), "no process is left"
    lost = {each.split()[1] for each in found.events.failures}
    assert lost == {each.device for each in faults}, found.events.failures
    assert re.search(rf"{goes_on}.*\Z", "\n".join(told(found.events))), told(found.events)
    assert_nothing_lost(ready, tmp_path, found.trained, whole)


HARMLESS: dict[str, tuple[Fault, int]] = {
    "frozen for a while": (fault("d1", FREEZE, FORWARD, frozen_s=FROZEN_S), 0),
    "a value is lost": (fault("d0", CUT, FORWARD), 1),
    "a gradient is lost": (fault("d2", CUT, BACKWARD), 1),
    "a part of the all-reduce is lost": (fault("d1", CUT, ALL_REDUCE), 1),
}
"""Name -> the fault, and how often the round is run again."""


@pytest.mark.parametrize(("met", "again"), HARMLESS.values(), ids=HARMLESS)
def test_no_device_is_lost(met: Fault, again: int, ready: Prepared, whole: Trained, tmp_path: Path) -> None:
    """A round whose messages are lost is run again by the same plan, to the same bits."""
    assert_run_again(ready, table_plan(ready), whole, tmp_path, met, again)


def assert_run_again(ready: Prepared, made: Plan, whole: Trained, folder: Path, met: Fault, again: int = 1) -> None:
    """Rounds are run again so often, no device is lost, and the training ends with the same bits as a whole one."""
    found = meet(ready, made, folder, met)
    assert all(job.poll() is not None for job in found.jobs), "no process is left"
    assert found.events.failures == ()
    assert len([each for each in told(found.events) if each.startswith("goes on")]) == again, told(found.events)
    assert_nothing_lost(ready, folder, found.trained, whole, bitwise=True)


@pytest.mark.parametrize(
    "met",
    [fault("d0", CUT, FORWARD), fault("d2", CUT, BACKWARD), fault("d2", CUT, BACKUP, round=0)],
    ids=lambda met: met.point,
)
def test_a_piece_of_a_message_is_lost(
    met: Fault, ready: Prepared, whole: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: where a message is sent in pieces, over a share of a link or as a backup, the loss of one of them ended the
    training as malformed, since the next one came before anybody knew of the loss.
    """
    monkeypatch.setattr(revisions, "BACKUP_SHARE", NARROW)
    shared = tuple(LinkUse(source=a, target=b, share=NARROW) for a, b in (("d0", "d2"), ("d2", "d0")))
    made = replace(backed_up(table_plan(ready)), links=shared)
    assert_run_again(ready, made, whole, tmp_path, met)


def test_a_link_that_does_not_come_back_costs_the_device_behind_it(
    ready: Prepared, whole: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: the training ended, though both devices lived and the others could go on without one of them."""
    monkeypatch.setattr(liveness, "PARTED_S", 2.0)
    found = meet(ready, table_plan(ready), tmp_path, fault("d0", SEVER, FORWARD))
    assert all(job.poll() is not None for job in found.jobs), "no process is left"
    assert [each.split()[1] for each in found.events.failures] == ["d2"], (found.events.failures, told(found.events))
    assert "from round 2 on d0, d1: the checkpoint is read" in told(found.events)[-1], told(found.events)
    assert len([each for each in told(found.events) if each.startswith("link ")]) == 1, told(found.events)
    assert_nothing_lost(ready, tmp_path, found.trained, whole)


class Far:
    """A job on a machine that cannot be reached: nothing ends it."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __getattr__(self, name: str) -> Any:
        return getattr(self.job, name)

    def stop(self, grace_s: float = 2.0) -> int:
        """Do nothing."""
        return 0


class FarLauncher(Recording):
    """Starts jobs that nothing ends."""

    def start(self, command: Command) -> Job:
        """Start a command."""
        job: Any = Far(super().start(command))
        self.jobs[-1] = job
        return job


def test_a_device_that_comes_out_of_a_long_freeze_changes_nothing(
    ready: Prepared, whole: Trained, tmp_path: Path
) -> None:
    """It is lost after its silence. When it goes on in the midst of the others' next rounds, with messages of the round
    in which it froze, nobody takes them.
    """
    launcher, frozen = FarLauncher(), fault("d1", FREEZE, BACKWARD)
    thawed: list[int] = []

    def thaw(sentence: str) -> None:
        mark = happened(tmp_path / "marks", frozen.number)
        if sentence.startswith("goes on") and mark is not None:
            thawed.append(mark.pid)
            os.kill(mark.pid, signal.SIGCONT)

    try:
        found = meet(ready, table_plan(ready), tmp_path, frozen, launcher=launcher, note=thaw)
        assert [each.split()[1] for each in found.events.failures] == ["d1"]
        assert thawed and launcher.jobs[1].poll() != -signal.SIGKILL, "it went on, until it ended by itself"
        assert_nothing_lost(ready, tmp_path, found.trained, whole)
    finally:
        for job in launcher.jobs:
            job.job.stop(0.0)  # type: ignore[attr-defined]


def test_a_full_disk_of_the_commit_log(
    ready: Prepared, whole: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that takes half a line of the commit log ends the training with 75 and its folder; that round was not
    committed. Once there is room, the training goes on to the same bits.
    """
    work, fsync = tmp_path / "work", os.fsync

    def full(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path == work / "commits.jsonl" and len(lines := path.read_bytes().splitlines(keepends=True)) > 3:
            os.truncate(path, sum(map(len, lines[:3])) + 16)
            raise OSError(28, "No space left on device")
        fsync(handle)

    with monkeypatch.context() as disk, pytest.raises(TryAgain, match="its disk is full .No space left") as caught:
        disk.setattr(os, "fsync", full)
        run_plan(ready, table_plan(ready), TRAINING, tmp_path)
    assert (work / "commits.jsonl").read_bytes().splitlines()[3:] == [b'{"round": 3, "lo']
    assert str(work) in str(caught.value) and caught.value.exit_code == 75
    assert len(read_commits(work / "commits.jsonl")) == 3
    said: list[str] = []
    found = newest_complete(work, said.append)
    assert found is not None and found.folder == checkpoint_folder(work, 2) and not said
    metrics = run_plan(ready, table_plan(ready), TRAINING, tmp_path)
    assert metrics.resumed_from_round == 2
    assert_nothing_lost(ready, tmp_path, Trained(metrics, final_state(tmp_path)), whole, bitwise=True)
