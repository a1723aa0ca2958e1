"""Resuming a training: from this attempt's newest checkpoint, or from that of an earlier attempt by another plan.

Adopting the checkpoint of an earlier attempt leaves in the work folder

    checkpoints/round-000040/...    a copy of the earlier attempt's checkpoint, with its commit log
    plan.json                       the first round that this attempt's plan trains
    events.jsonl                    begins with the events of the earlier attempt
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.metrics import RoundMetrics
from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.monitoring.event_log import ENDED
from fleetune.training.checkpoints import (
    CHECKPOINTS,
    MARK,
    StoredCheckpoint,
    checkpoint_folder,
    delete_checkpoint,
    newest_complete,
)
from fleetune.training.commit_log import COMMITS, flush, read_commits, write_durably
from fleetune.training.task import TrainingTask

PLAN, EVENTS = "plan.json", "events.jsonl"


@record
class PlanStart:
    """The first round that the plan of an attempt trains."""

    from_round: int


def adopt_newest(work: Path, earlier: Sequence[Path], note: Callable[[str], None]) -> StoredCheckpoint | None:
    """Return the newest complete checkpoint of this attempt and of earlier ones, copied into `work` if necessary.

    `note` receives a sentence for each damaged checkpoint that is skipped. The earlier folders are not changed.
    """
    own = newest_complete(work, note)
    others = [found for folder in earlier if (found := newest_complete(folder, note)) is not None]
    newest = max(others, key=lambda found: found.mark.round, default=None)
    if newest is None or (own is not None and own.mark.round >= newest.mark.round):
        return own
    folder, mark = newest
    before = folder.parent.parent
    if not (work / EVENTS).exists() and (before / EVENTS).exists():
        lines = (before / EVENTS).read_text(encoding="utf-8", errors="replace").splitlines()
        kept = [line for line in lines if f'"event": "{ENDED}"' not in line]
        write_durably("".join(f"{line}\n" for line in kept), work / EVENTS)
    write_durably(json_io.text(PlanStart(from_round=mark.round)), work / PLAN)
    return StoredCheckpoint(_copy_checkpoint(newest, work), mark)


def first_round_of_plan(work: Path) -> int:
    """Return the first round that is trained by the plan of the attempts in this folder."""
    return json_io.read(PlanStart, work / PLAN).from_round if (work / PLAN).exists() else 0


def committed_rounds(task: TrainingTask, found: StoredCheckpoint | None) -> list[RoundMetrics]:
    """Return the metrics of the rounds in the checkpoint, from its own copy of the commit log, and report the resume.

    Refused if that copy does not list exactly these rounds.
    """
    if found is None:
        if task.work.joinpath(COMMITS).exists():
            task.note(f"no checkpoint can be used: training begins anew, with round 0 of {task.training.rounds}")
        return []
    folder, mark = found
    rounds = read_commits(folder / COMMITS)
    if [r.round for r in rounds] != list(range(mark.round)):
        raise Refused(f"{folder / COMMITS}: does not list rounds 0 to {mark.round - 1}; delete {folder} and run again")
    left = f"goes on from round {mark.round} of {task.training.rounds}"
    whose = "another plan's" if first_round_of_plan(task.work) == mark.round else "an earlier attempt's"
    (task.resumed or task.note)(
        f"{left if mark.round < task.training.rounds else 'all rounds are done'}, by {whose} checkpoint"
    )
    if not task.work.joinpath(COMMITS).exists() and first_round_of_plan(task.work) == mark.round:
        return rounds  # the other plan's log is in the checkpoint
    try:
        logged = read_commits(task.work / COMMITS)[: mark.round]
    except (Refused, OSError):
        logged = []
    if logged != rounds:
        task.note(f"{task.work / COMMITS} has lost some of {mark.round} rounds: they are taken from the checkpoint")
    return rounds


def _copy_checkpoint(found: StoredCheckpoint, work: Path) -> Path:
    """Copy a checkpoint into another work folder, by hard links where the disk allows them, and return its folder."""
    folder, mark = found
    target, part = checkpoint_folder(work, mark.round), work / CHECKPOINTS / "taken-up.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name in dict.fromkeys((*mark.files, *mark.digests, MARK)):
        try:
            os.link(folder / name, part / name)
        except OSError:
            shutil.copyfile(folder / name, part / name)
        flush(part / name)
    flush(part)
    delete_checkpoint(target)
    part.rename(target)
    flush(target.parent)
    return target
