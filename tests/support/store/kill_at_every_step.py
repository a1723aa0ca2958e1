"""A process that puts an artifact and its key again and again, killed one file operation later each time.

`python -m tests.support.store.kill_at_every_step FOLDER`: for n = 1, 2, ... a child does the whole work in a fresh
store `FOLDER/n` and kills itself with SIGKILL at its n-th file operation; ends with the first child that comes through.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from fleetune.store import KeyRecord, Store

WATCHED = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "shutil.move", "shutil.rmtree", "os.truncate"}


def put_and_keep(folder: Path) -> None:
    """Store an artifact and its key, as the runner does when a stage has finished."""
    store = Store(folder)
    output = store.work("key") / "output" / "plan"
    output.mkdir(parents=True)
    for name in ("a", "b", "c"):
        (output / name).write_text(name * 1000)
    digest = store.put("plan", output, stage_key="key", inputs={})
    store.keep_key("key", KeyRecord(stage="plan", run="r", outputs={"plan": digest}, ingredients={}))
    store.drop_work("key")


def die_at(step: int) -> None:
    """Count file operations from now on and die at the n-th."""
    left = [step]

    def hook(event: str, arguments: Any) -> None:
        if event in WATCHED:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def main(folder: Path) -> None:
    """Fork children until one survives."""
    put_and_keep(folder / "warm")  # everything that is imported late is imported now
    for step in range(1, 1000):
        child = os.fork()
        if child == 0:
            die_at(step)
            put_and_keep(folder / str(step))
            os._exit(0)  # private: its documented name; a fork must not do what its parent does at its end
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            return
    raise AssertionError("no child came through")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
