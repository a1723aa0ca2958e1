"""One attempt at a stage: a process with a task file, its lines passed on, its output folder checked."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleetune.contracts import wire
from fleetune.contracts.task import StageTask
from fleetune.errors import TryAgain, by_exit_code
from fleetune.launching import Command, Job, Launcher, exit_in_words
from flows.events import Listen, StageEvent
from stages.catalog import StageEntry

OUTPUT, LOG, TASK = "output", "stage.log", "task.json"


def start(row: StageEntry, task: StageTask, launcher: Launcher, reads: tuple[Path, ...] = ()) -> Job:
    """Start a stage in its work folder; what an earlier attempt wrote as output is cleared away, its work is not.

    `reads`: folders outside the store that it reads.
    """
    work = Path(task.work)
    shutil.rmtree(task.output, ignore_errors=True)
    Path(task.output).mkdir(parents=True)
    wire.write(task, work / TASK)
    return launcher.start(
        Command(
            module=row.module,
            arguments=("--task", str(work / TASK)),
            log=work / LOG,
            reads=(*map(Path, task.inputs.values()), *reads),
            writes=(work,),
        )
    )


def listen_to_end(row: StageEntry, job: Job, listen: Listen, resumed: Callable[[str], None]) -> None:
    """Pass on what a stage says until it ends; raise the error it ended with.

    `resumed` hears, in words, what an earlier attempt had done already.
    """
    message = ""
    for line in job.lines():
        event = _event(line)
        if event.get("event") == "error":
            message = str(event.get("message", ""))
        elif event.get("event") == "progress":
            listen(_progress(row.name, event))
        elif event.get("event") in ("note", "resumed"):
            if event["event"] == "resumed":
                resumed(str(event.get("text", "")))
            listen(StageEvent(stage=row.name, kind="note", text=str(event.get("text", ""))))
    code = job.wait()
    if code:
        last = job.tail(1).strip()
        raise by_exit_code(
            code,
            message or f"stage {row.name} {exit_in_words(code)}" + (f"; its last words were: {last}" if last else ""),
        )


def outputs_of(row: StageEntry, task: StageTask) -> dict[str, Path]:
    """kind -> folder of everything the stage was to make; TryAgain naming what it left out."""
    folders = {kind: Path(task.output) / kind for kind in row.outputs}
    for kind, folder in folders.items():
        if not folder.is_dir() or not any(folder.iterdir()):
            raise TryAgain(f"stage {row.name} ended well but wrote no {kind}; see its log and run it again")
    return folders


def _event(line: str) -> dict[str, Any]:
    """A line of stdout; whatever is not one of our events says nothing."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _progress(stage: str, event: dict[str, Any]) -> StageEvent:
    return StageEvent(
        stage=stage,
        kind="progress",
        text=str(event.get("what", "")),
        done=float(event.get("done", 0)),
        total=float(event.get("total", 0)),
        unit=str(event.get("unit", "")),
        detail=str(event.get("detail", "")),
    )
