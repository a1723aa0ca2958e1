"""The commit log of a training, and the checkpoint from which an interrupted one resumes.

An attempt finds and leaves in its work folder

    commits.jsonl                   the commit log: one line per committed round
    checkpoints/round-000040/...    its own checkpoints, or a copy of an earlier attempt's, each with its commit log
    plan.json                       the first round of the current plan and measurements, and their digests
    events.jsonl                    the event log, which begins with the events of the earlier attempts
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import field, replace
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.metrics import RoundMetrics
from fleetune.contracts.plan import Plan
from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.monitoring.event_log import ENDED
from fleetune.training.batches import dealing_plan
from fleetune.training.checkpoints import (
    COMMITS,
    LANE_MARK,
    CheckpointMark,
    StoredCheckpoint,
    copy_checkpoint,
    foreign_lanes,
    newest_complete,
    write_text,
)
from fleetune.training.task import TrainingTask

PLAN, EVENTS = "plan.json", "events.jsonl"


class CommitLog:
    """Append-only JSON lines. A round is committed once its line is on disk; only then may parameters move."""

    def __init__(self, path: Path, rounds: Sequence[RoundMetrics]) -> None:
        """Open the log with these rounds and discard others, whose parameters were lost with their workers."""
        self.rounds: list[RoundMetrics] = list(rounds)
        self.rested = _rested(self.rounds)
        """Lane -> in how many of these rounds it rested; it has taken a step in each of the others."""
        self._path = path
        write_text(self.text, path)
        self._file = path.open("a", encoding="utf-8")

    @property
    def text(self) -> str:
        """The lines of all committed rounds."""
        return self.text_of(len(self.rounds))

    def text_of(self, rounds: int) -> str:
        """Return the lines of the first `rounds` rounds."""
        return "".join(_line(metrics) for metrics in self.rounds[:rounds])

    def rewind(self, rounds: int) -> None:
        """Keep the first `rounds` rounds only, and wait until that is on disk."""
        del self.rounds[rounds:]
        self.rested = _rested(self.rounds)
        self._file.close()
        write_text(self.text, self._path)
        self._file = self._path.open("a", encoding="utf-8")

    def commit(self, metrics: RoundMetrics) -> None:
        """Append a round and wait until it is on disk."""
        self._file.write(_line(metrics))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rounds.append(metrics)
        self.rested.update(metrics.resting)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _rested(rounds: Iterable[RoundMetrics]) -> Counter[str]:
    return Counter(lane for metrics in rounds for lane in metrics.resting)


def read_commits(path: Path) -> list[RoundMetrics]:
    """Return the committed rounds of a log; Refused for a malformed line.

    A last line without a line end was cut off by a kill and is not a commit.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json_io.parse(RoundMetrics, line, str(path)) for line in lines]


def logged_beyond(work: Path, rounds: Sequence[RoundMetrics]) -> list[RoundMetrics]:
    """Return the logged rounds that follow `rounds` and are run again, as their state was lost with their workers.

    Empty if the log is of other rounds or cannot be read: then nothing of it is repeated.
    """
    try:
        logged = read_commits(work / COMMITS)
    except (Refused, OSError):
        return []
    done = len(rounds)
    return logged[done:] if logged[:done] == list(rounds) else []


def _line(metrics: RoundMetrics) -> str:
    return json.dumps(json_io.dump(metrics), allow_nan=False) + "\n"


@record
class PlanStart:
    """First round that the current plan trains on the current measurements of the fleet."""

    from_round: int
    """The `round_s` of earlier rounds cannot be compared with the forecast of the current plan."""
    digests: dict[str, str] = field(default_factory=dict)
    """sha256 of the plan, fleet and profile that trained last; empty in work folders of earlier versions."""
    replanned: bool = False
    """True if the plan before was another one; False if only the measurements were."""
    dealt: Plan | None = None
    """The plan that dealt the lanes their samples; None in work folders of earlier versions."""
    plan_from_round: int = 0
    """First round that the current plan trains, on whatever measurements; what it has chosen since counts."""


def read_plan_start(work: Path) -> PlanStart:
    """Return the start of the plan that trained last in this folder; round 0 if nothing is recorded."""
    return json_io.read(PlanStart, work / PLAN) if (work / PLAN).exists() else PlanStart(from_round=0)


def adopt_newest(
    work: Path,
    earlier: Sequence[Path],
    note: Callable[[str], None],
    lanes: Collection[str] = (),
    *,
    owned: bool = False,
) -> StoredCheckpoint | None:
    """Return the newest complete checkpoint of this attempt and of earlier ones, copied into `work` if necessary.

    `note` receives a sentence for each checkpoint that is skipped: a damaged one, or one between two averages of lanes
    that lacks one of the plan's (`lanes`). If no other is left, one that has some of them is used, and the others begin
    with the state of its first one. Refused if they are `owned`: lanes of owners of data, of which none may begin with
    the state of another one before an average. The earlier folders are not changed.
    """
    said: list[str] = []
    own, newest = _newest_of(work, earlier, said.append, lambda mark: foreign_lanes(mark, lanes))
    if own is newest is None and lanes:
        lenient: list[str] = []
        own, newest = _newest_of(work, earlier, lenient.append, lambda mark: foreign_lanes(mark, lanes, some=True))
        if owned and (found := own or newest):
            raise Refused(
                f"data.local: the checkpoints lie between two averages, and {_lacking(found.mark, lanes)} would begin "
                "with what others have trained; leave it out of the strategy's options (clients, devices) to go on, or "
                f"delete {found.folder.parent} to begin anew"
            )
        if own or newest:
            said = [*lenient, "no checkpoint is of an average: lanes that it lacks begin with the state of another one"]
    for sentence in said:
        note(sentence)
    if newest is None or (own is not None and own.mark.round >= newest.mark.round):
        return own
    folder, mark = newest
    before = folder.parent.parent
    if not (work / EVENTS).exists() and (before / EVENTS).exists():
        lines = (before / EVENTS).read_text(encoding="utf-8", errors="replace").splitlines()
        kept = [line for line in lines if f'"event": "{ENDED}"' not in line]
        write_text("".join(f"{line}\n" for line in kept), work / EVENTS)
    start = read_plan_start(before)
    adopted = replace(start, from_round=mark.round, replanned=False)
    write_text(json_io.text(adopted), work / PLAN)
    return StoredCheckpoint(copy_checkpoint(newest, work), mark)


def _newest_of(
    work: Path, earlier: Sequence[Path], note: Callable[[str], None], unfit: Callable[[CheckpointMark], str]
) -> tuple[StoredCheckpoint | None, StoredCheckpoint | None]:
    """Return the newest checkpoint of this attempt and that of the earlier ones."""
    own = newest_complete(work, note, unfit)
    others = [found for folder in earlier if (found := newest_complete(folder, note, unfit)) is not None]
    return own, max(others, key=lambda found: found.mark.round, default=None)


def _lacking(mark: CheckpointMark, lanes: Collection[str]) -> str:
    """Name the lanes that a checkpoint has no state of."""
    held = {name.partition(LANE_MARK)[0] for name in mark.files if LANE_MARK in name}
    return ", ".join(lane for lane in lanes if lane not in held)


def resume(task: TrainingTask, found: StoredCheckpoint | None) -> list[RoundMetrics]:
    """Report the resume, record where the current plan begins, and return the rounds in the checkpoint.

    Their metrics come from the checkpoint's own copy of the commit log. Refused if that does not list exactly them.
    """
    if found is None:
        record_plan_start(task, 0)
        if any((folder / COMMITS).exists() for folder in (task.work, *task.earlier)):
            task.note(f"no checkpoint can be used: training begins anew, with round 0 of {task.training.rounds}")
        return []
    folder, mark = found
    rounds = read_commits(folder / COMMITS)
    if [r.round for r in rounds] != list(range(mark.round)):
        raise Refused(f"{folder / COMMITS}: does not list rounds 0 to {mark.round - 1}; delete {folder} and run again")
    adopted = read_plan_start(task.work).from_round == mark.round
    _report(task, record_plan_start(task, mark.round), mark.round)
    if not task.work.joinpath(COMMITS).exists() and adopted:
        return rounds  # the earlier attempt's log is in the checkpoint
    try:
        logged = read_commits(task.work / COMMITS)[: mark.round]
    except (Refused, OSError):
        logged = []
    if logged != rounds:
        task.note(f"{task.work / COMMITS} has lost some of {mark.round} rounds: they are taken from the checkpoint")
    return rounds


def record_plan_start(task: TrainingTask, done: int) -> PlanStart:
    """Record in the work folder that the task's plan goes on after `done` rounds; return the recorded start.

    Plan, fleet and profile may differ from those of the attempt before, even under the same stage key: links that were
    measured again give another forecast and other times. Then only rounds from `done` on count as this plan's, and what
    another plan has decided in rounds that are run again is forgotten.
    """
    before = read_plan_start(task.work)
    digests = {
        name: hashlib.sha256(json_io.text(part).encode()).hexdigest()
        for name, part in (("plan", task.plan.plan), ("fleet", task.fleet), ("profile", task.profile))
    }
    dealt = dealing_plan(before.dealt if done else None, task.plan.plan)
    if before.digests and before.digests != digests:
        replanned = before.digests["plan"] != digests["plan"]
        if replanned:
            _drop_beyond(task.work / COMMITS, done)
        start = PlanStart(from_round=done, digests=digests, replanned=replanned and done > 0, dealt=dealt)
    else:
        replanned, from_round = False, min(before.from_round, done)
        start = PlanStart(from_round=from_round, digests=digests, replanned=before.replanned, dealt=dealt)
    start = replace(start, plan_from_round=done if replanned else min(before.plan_from_round, done))
    write_text(json_io.text(start), task.work / PLAN)
    return start


def _drop_beyond(log: Path, rounds: int) -> None:
    """Leave the first rounds of a log, if it is there."""
    if log.exists():
        write_text("".join(log.read_text(encoding="utf-8").splitlines(keepends=True)[:rounds]), log)


def _report(task: TrainingTask, start: PlanStart, done: int) -> None:
    left = (
        f"goes on from round {done} of {task.training.rounds}" if done < task.training.rounds else "all rounds are done"
    )
    whose = "another plan's" if start.replanned and start.from_round == done else "an earlier attempt's"
    (task.resumed or task.note)(f"{left}, by {whose} checkpoint")
