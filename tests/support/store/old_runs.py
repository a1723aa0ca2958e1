"""Stores with old runs, and a process that removes them and is killed one file operation later each time.

`python -m tests.support.store.old_runs FOLDER`: for n = 1, 2, ... a child removes old runs in a fresh store `FOLDER/n`
and kills itself with SIGKILL at its n-th file operation; ends with the first child that comes through.
"""

import hashlib
import os
import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fleetune.contracts.run_config import DataRequest, ModelRequest, RunConfig
from fleetune.contracts.training_request import TrainingRequest
from fleetune.store import KeyRecord, RunRecord, StageRecord, Store, stage_key
from fleetune.store.garbage import Removal, remove_old_runs
from fleetune.store.manifest import FileEntry, content_digest
from fleetune.store.runs import RUN
from tests.support.store.kill_at_every_step import die_at

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
CONFIG = RunConfig(
    name="old",
    model=ModelRequest(task="causal-lm", config={"model_type": "gpt2"}),
    data=DataRequest(source="digits"),
    training=TrainingRequest(rounds=3),
)


def add_run(
    store: Store, number: int, *, state: str = "done", hours: int | None = None, kind: str = RUN, own: str = "own"
) -> RunRecord:
    """Store the run old-NUMBER, NUMBER hours after noon; it makes one artifact of its own, whose kind is `own`, and one
    that all share."""
    key = stage_key({"number": str(number)})
    outputs = {}
    for made_kind, text in ((own, _text(number)), ("shared", "all")):
        output = store.work(key) / made_kind / "model"
        output.mkdir(parents=True)
        (output / "weights").write_text(text)
        outputs[made_kind] = store.put(made_kind, output.parent, stage_key=key, inputs={})
    store.keep_key(key, KeyRecord(stage="make", run=f"old-{number}", outputs=outputs, ingredients={}))
    store.drop_work(key)
    began = NOON + timedelta(hours=number if hours is None else hours)
    made = RunRecord(
        id=f"old-{number}",
        kind=kind,
        config=CONFIG,
        seed=0,
        code_version="0.1.0",
        state=state,
        started=began.isoformat(),
        stages=(StageRecord(stage="make", key=key, state="done", outputs=outputs, how="ran"),),
    )
    store.runs.save(made)
    return made


def artifact_digest(number: int) -> str:
    """Digest of the artifact that only the run old-NUMBER has."""
    text = _text(number).encode()
    entry = FileEntry(path="model/weights", bytes=len(text), sha256=hashlib.sha256(text).hexdigest())
    return content_digest([entry])


def _text(number: int) -> str:
    return f"of run {number}"


def intact(store: Store) -> bool:
    """True when every run in the store has all its artifacts whole, and every key stands for whole artifacts."""
    needed = [output for run in store.runs.all() for output in run.outputs.items()]
    keys = [name.removesuffix(".json") for name in store.storage.names("keys") if len(name) > 32]
    needed += [output for key in keys for output in (store.find(key) or {}).items()]
    return bool(needed) and not any(store.first_bad(*output) for output in needed)


def tree(folder: Path) -> dict[str, bytes]:
    """Path -> content of every file."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def removed_paths(removal: Removal) -> set[str]:
    """Paths of everything that was removed."""
    return {one.path for one in removal.removed}


def main(folder: Path) -> None:
    """Fork children until one survives."""
    template = folder.parent / f"{folder.name}-template"
    for number in range(1, 4):
        add_run(Store(template), number)
    (Store(template).work(stage_key({"number": "1"})) / "half").write_text("unfinished")
    shutil.copytree(template, folder / "warm")
    remove_old_runs(Store(folder / "warm"), 1)  # everything that is imported late is imported now
    for step in range(1, 1000):
        shutil.copytree(template, folder / f"{step:03}")
        child = os.fork()
        if child == 0:
            die_at(step)
            remove_old_runs(Store(folder / f"{step:03}"), 1)
            os._exit(0)  # private: its documented name; the child must leave the parent's folders as they are
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            return
    raise AssertionError("no child came through")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
