"""Attempts at a stage: process, events on its stdout, output folder, container mounts, and attempts to resume.

An attempt writes the ingredients of its key beside its work (`ingredients.json`). A later attempt whose ingredients
differ only in inputs that the stage can exchange (StageSpec.resumes) continues from that work.
"""

import dataclasses
import json
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fleetune import exposed_folders
from fleetune.contracts import json_io
from fleetune.contracts.run_config import RunConfig
from fleetune.contracts.task import StageTask, message_of
from fleetune.errors import Refused, TryAgain, by_exit_code
from fleetune.filesystem import write_durably
from fleetune.launching import Command, Job, Launcher, describe_exit
from fleetune.launching.job import exit_code_after_output
from fleetune.store import Ingredients, Store
from fleetune.training.worker_modules import WORKER_MODULES
from flows.tracking import EventListener, StageEvent
from stages.catalog import StageSpec

INGREDIENTS = "ingredients.json"
DIGITS = "digits"
READ_BY_ALL = 0o005
"""Permission bits: everybody may list and enter a folder."""
OUTPUT, LOG, TASK = "output", "stage.log", "task.json"


def start(
    spec: StageSpec, task: StageTask, launcher: Launcher, given_up: Callable[[], bool], reads: tuple[Path, ...] = ()
) -> Job:
    """Start a stage in its work folder; clears the output of an earlier attempt and keeps its work.

    `given_up` tells whether its run has been told to end; `reads` are folders outside the store that the stage reads.
    In a container it can write nothing but its output: what this process writes or reads meanwhile lies beside that.
    """
    work = Path(task.work)
    exposed_folders.remove(Path(task.output))
    Path(task.output).mkdir(parents=True)
    json_io.write(task, work / TASK)
    (work / TASK).chmod(0o644)  # a container has another user
    return launcher.start(
        Command(
            module=spec.module,
            arguments=("--task", str(work / TASK)),
            preloads=WORKER_MODULES if "torch" in spec.packages else (),
            forks=not spec.image,
            warms_up=_model_of(spec, task),
            given_up=given_up,
            log=work / LOG,
            reads=(work / TASK, *map(Path, task.inputs.values()), *reads),
            writes=(Path(task.output),),
        )
    )


def _model_of(spec: StageSpec, task: StageTask) -> tuple[str, ...]:
    """What is made once for all processes that a stage starts on devices; empty where these need no model."""
    if spec.image or "model" not in task.inputs or "model" not in task.config:
        return ()
    return "fleetune.training.worker_state", task.inputs["model"], json.dumps(task.config["model"])


def listen_to_end(spec: StageSpec, job: Job, listen: EventListener, resumed: Callable[[str], None]) -> None:
    """Forward the events of a stage until it ends; raise the error it ended with.

    `resumed` receives a sentence on the work of an earlier attempt that this one continues.
    """
    message = ""
    for line in job.lines():
        event = message_of(line)
        if event.get("event") == "error":
            message = str(event.get("message", ""))
        elif event.get("event") == "progress":
            listen(_progress(spec.name, event))
        elif event.get("event") in ("note", "resumed"):
            if event["event"] == "resumed":
                resumed(str(event.get("text", "")))
            listen(StageEvent(stage=spec.name, kind="note", text=str(event.get("text", ""))))
    code = exit_code_after_output(job, f"stage {spec.name}")
    if code:
        last = job.tail(1).strip()
        raise by_exit_code(
            code,
            message or f"stage {spec.name} {describe_exit(code)}" + (f"; its last line was: {last}" if last else ""),
        )


def outputs_of(spec: StageSpec, task: StageTask) -> dict[str, Path]:
    """kind -> output folder, for every output of the stage; TryAgain names one that is missing."""
    folders = {kind: Path(task.output) / kind for kind in spec.outputs}
    for kind, folder in folders.items():
        if not folder.is_dir() or not any(folder.iterdir()):
            raise TryAgain(f"stage {spec.name} ended well but wrote no {kind}; see its log and run it again")
    return folders


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


def fits_in_container(spec: StageSpec, config: RunConfig) -> bool:
    """True when a container without a network can read the stage's data.

    It can read scikit-learn's digits and a folder that every user may read. A single file, the sources of this
    machine's Python and a name on the hub cannot be mounted, so that such data are prepared beside the flow.
    """
    if spec.local_content and config.data.local:
        return False  # it starts work on the devices that have data
    if "data" not in spec.content or config.data.source == DIGITS:
        return True
    if config.data.files or config.data.chat_template is not None or isinstance(config.data.validation, str):
        return False
    folder = Path(config.data.source)
    return folder.is_dir() and folder.is_absolute() and all(map(_read_by_all, (folder, *folder.rglob("*"))))


def _read_by_all(path: Path) -> bool:
    """True for a file or folder that every user may read; a container would silently skip any other."""
    if not path.exists():  # a dangling link
        return True
    mode = path.stat().st_mode
    needed = READ_BY_ALL if path.is_dir() else stat.S_IROTH
    return mode & needed == needed


def for_container(spec: StageSpec, task: StageTask, config: RunConfig) -> tuple[StageTask, tuple[Path, ...]]:
    """The task with hub names replaced by local folders, and the folders outside the store that it reads."""
    reads: tuple[Path, ...] = ()
    if "data" in spec.content and config.data.source != DIGITS:
        reads = (Path(config.data.source),)
    if "model" not in spec.config:
        return task, reads
    from fleetune.models.source import local_folders, with_local_source  # imports transformers

    settings = {**task.config, "model": json_io.dump(with_local_source(config.model))}
    return dataclasses.replace(task, config=settings), (*reads, *local_folders(config.model))


def write_ingredients(work: Path, ingredients: Mapping[str, str]) -> None:
    """Write the ingredients of an attempt's key, which later attempts compare with theirs."""
    text = json.dumps(dict(ingredients), indent=1, sort_keys=True) + "\n"
    write_durably(text.encode(), work / INGREDIENTS)


@contextmanager
def resumable_attempts(
    store: Store, spec: StageSpec, key: str, ingredients: Mapping[str, str]
) -> Iterator[tuple[str, ...]]:
    """Keys of unfinished attempts that this one may resume; their folders are locked meanwhile."""
    with ExitStack() as held:
        found = []
        for other in store.work_keys() if spec.resumes else ():
            if other != key and _is_resumable(store, spec, read_ingredients(store, other), ingredients):
                lock = store.lock(other, lambda seconds: True)
                if lock.take():
                    held.callback(lock.release)
                    found.append(other)
        yield tuple(found)


def read_ingredients(store: Store, key: str) -> Ingredients:
    """Ingredients of an unfinished attempt's key; empty when they were not written or the attempt does not exist."""
    try:
        found = json.loads((store.local / "work" / key / INGREDIENTS).read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}


def _is_resumable(store: Store, spec: StageSpec, old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    free = {f"input.{kind}" for kind in spec.resumes}
    if not old or {**old, **dict.fromkeys(free, "")} != {**new, **dict.fromkeys(free, "")}:
        return False
    fixed = {kind: names for kind, names in spec.resumes.items() if names}
    before, now = (
        [_file_digests(store, kind, of[f"input.{kind}"], names) for kind, names in fixed.items()] for of in (old, new)
    )
    return before == now


def _file_digests(store: Store, kind: str, digest: str, names: tuple[str, ...]) -> dict[str, str] | None:
    """path -> sha256 of the named files of an artifact; None when the artifact has left the store."""
    try:
        files = store.manifest(kind, digest).files
    except Refused:
        return None
    return {file.path: file.sha256 for file in files if file.path in names}
