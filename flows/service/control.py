"""Start and stop the service of a store: `fleetune up`, `fleetune down`."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from fleetune.errors import Refused, TryAgain, by_exit_code
from fleetune.launching.process import child_command, inherited_environment
from flows.service.record import ServiceFiles, ServiceRecord

END_S, ASK_S = 60.0, 0.1
PORT = 4200


def up(local: Path, root: str, port: int, tell: Callable[[str], None]) -> ServiceRecord:
    """Start the service of a store unless it runs; returns its record. Raises the error that the start ended with."""
    files = ServiceFiles(local)
    if (running := files.running()) is not None:
        return running
    if files.starting():
        raise TryAgain(f"{root}: its service is starting or ending; try again in a few seconds")
    files.folder.mkdir(parents=True, exist_ok=True)
    with (files.folder / "keeper.log").open("ab") as log:
        keeper = subprocess.Popen(
            [*child_command(0), "flows.service.keeper", str(port), root],
            env={**inherited_environment(os.environ), "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            text=True,
        )
    assert keeper.stdout is not None
    for line in keeper.stdout:
        word, _, text = line.strip().partition(" ")
        if word == "ready":
            break
        if word in ("refused", "failed"):
            raise by_exit_code(keeper.wait(), text)
        tell(line.strip())
    record = files.running()
    if record is None:
        raise TryAgain(f"the service ended while it started; see {files.folder / 'keeper.log'}, and run it again")
    return record


def down(local: Path, root: str, pause: Callable[[float], None] = time.sleep) -> ServiceRecord:
    """Stop the service of a store and everything that it started; returns the record it had."""
    files = ServiceFiles(local)
    record = files.running()
    if record is None:
        if files.starting():
            raise TryAgain(f"{root}: its service is starting or ending; try again in a few seconds")
        raise Refused(f"{root}: no service runs for this store; start one with: fleetune up")
    os.kill(record.keeper, signal.SIGTERM)  # the lock is held, so that this process id is the keeper's
    for _ in range(int(END_S / ASK_S)):
        if not files.starting():
            return record
        pause(ASK_S)
    raise TryAgain(f"the service (process {record.keeper}) did not end within {END_S:.0f} s; run it again")
