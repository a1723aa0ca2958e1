"""Going on from what another plan has trained: the newest checkpoint of earlier attempts becomes this attempt's own.

checkpoints/round-000040/...    as the earlier attempt wrote it, its commit log included
plan.json                       the first round that is trained by the plan of this attempt
events.jsonl                    begins with what happened to earlier attempts
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from fleetune.contracts import wire
from fleetune.contracts.record import record
from fleetune.monitoring.event_log import ENDED
from fleetune.training.checkpoints import (
    CHECKPOINTS,
    MARK,
    StoredCheckpoint,
    checkpoint_folder,
    delete_checkpoint,
    newest_complete,
)
from fleetune.training.commit_log import flush, write_durably

PLAN, EVENTS = "plan.json", "events.jsonl"


@record
class PlanStart:
    """Where the plan of an attempt took over from another one."""

    from_round: int


def adopt_newest(work: Path, earlier: Sequence[Path], note: Callable[[str], None]) -> StoredCheckpoint | None:
    """The newest whole checkpoint of this attempt's folder and those of earlier ones, which is in `work` afterwards.

    `note` is told why others are passed over. Nothing of the earlier folders is changed.
    """
    own = newest_complete(work, note)
    others = [found for folder in earlier if (found := newest_complete(folder, note)) is not None]
    newest = max(others, key=lambda found: found[1].round, default=None)
    if newest is None or (own is not None and own[1].round >= newest[1].round):
        return own
    folder, mark = newest
    before = folder.parent.parent
    if not (work / EVENTS).exists() and (before / EVENTS).exists():
        lines = (before / EVENTS).read_text(encoding="utf-8", errors="replace").splitlines()
        kept = [line for line in lines if f'"event": "{ENDED}"' not in line]
        write_durably("".join(f"{line}\n" for line in kept), work / EVENTS)
    write_durably(wire.text(PlanStart(from_round=mark.round)), work / PLAN)
    return _copy_checkpoint(newest, work), mark


def first_round_of_plan(work: Path) -> int:
    """The first round that is trained by the plan of the attempts in this folder."""
    return wire.read(PlanStart, work / PLAN).from_round if (work / PLAN).exists() else 0


def _copy_checkpoint(found: StoredCheckpoint, work: Path) -> Path:
    """A checkpoint under its own name in another work folder; its bytes are shared where the disk can."""
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
