"""Cleanup of engines by label: removal of a session, of orphans, and a reaper for processes that are killed.

`python -m fleetune.launching.docker.cleanup` is the reaper.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Engine
from fleetune.contracts.record import record
from fleetune.contracts.task import OUTLIVES_STAGE
from fleetune.errors import FleetuneError
from fleetune.launching.docker.engine_client import ENGINE_ERRORS, connect, local_engine
from fleetune.launching.process import child_command, inherited_environment
from fleetune.linux import start_ticks

RUN_LABEL, OWNER_LABEL, ENGINE_LABEL = "fleetune.run", "fleetune.owner", "fleetune.engine"
"""Labels: the token of the session, the process that made it (`machine:boot:namespace/pid/start`), and the address by
which that process reached an engine of another machine."""
UNKNOWN = "unknown"
MAX_PARALLEL = 8
ATTEMPTS = 5
STOPPED_STATES = ("created", "dead", "exited")
DONE = b"done\n"
REAPER_EXIT_TIMEOUT_S = 10.0
REAPER_PATIENCE_S, REAPER_RETRY_S = 600.0, 15.0
CREATION_S = 3.0
"""Seconds in which an engine ends a creation whose client has gone."""


@record
class MachineIdentity:
    """This machine, boot and process namespace, as a process sees them."""

    id: str
    """Survives a reboot; UNKNOWN where there is none. Copies of a machine share it."""
    boot: str
    """Random id of this boot."""
    namespace: str
    """Namespace of process ids."""
    booted_s: float
    """Time of the boot, in seconds since 1970."""


def this_machine() -> MachineIdentity:
    """The identity of this machine."""
    try:
        found = Path("/etc/machine-id").read_text().strip()
    except OSError:
        found = ""
    ticks = re.search(r"^btime (\d+)$", Path("/proc/stat").read_text(), re.MULTILINE)
    return MachineIdentity(
        id=found or UNKNOWN,
        boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        namespace=os.readlink("/proc/self/ns/pid"),
        booted_s=float(ticks[1]) if ticks else 0.0,
    )


def session_labels(token: str) -> dict[str, str]:
    """Labels of everything that a session of this process makes on an engine."""
    return {RUN_LABEL: token, OWNER_LABEL: owner_label(os.getpid())}


def owner_label(pid: int) -> str:
    """A process by machine, boot, namespace, id and start time, because process ids are reused."""
    here = this_machine()
    return f"{here.id}:{here.boot}:{here.namespace}/{pid}/{start_ticks(pid)}"


def remove(client: Any, token: str) -> bool:
    """Remove everything that a session has made; True if the engine says that nothing of it is left."""
    return _remove_all(client, {"label": f"{RUN_LABEL}={token}"})


def remove_session(client: Any, token: str, pause: Callable[[float], None]) -> bool:
    """Remove what a killed process has made, and then what the engine was still making for it; True if it is gone."""
    remove(client, token)
    pause(CREATION_S)
    return remove(client, token)


def remove_by_address(client: Any, address: str) -> None:
    """Remove everything that other machines have made by this address of the engine."""
    _remove_all(client, {"label": f"{ENGINE_LABEL}={address}"})


def _remove_all(client: Any, filters: dict[str, str]) -> bool:
    """Remove containers first, because they use networks and volumes; True if the engine says that nothing is left."""
    for _ in range(ATTEMPTS):  # a container that is just starting or ending may refuse
        containers = list(_listed(lambda: _containers(client, filters)))
        if not containers:
            break
        _remove(containers)
    _remove(_listed(lambda: client.networks.list(filters=filters)))
    _remove(_listed(lambda: client.volumes.list(filters=filters)))
    try:
        left = [*_containers(client, filters), *client.networks.list(filters=filters)]
        return not (left or client.volumes.list(filters=filters))
    except ENGINE_ERRORS:
        return False


def remove_orphans_here() -> int:
    """Remove orphans from the engine of this machine, if one answers; returns their number."""
    with suppress(FleetuneError, *ENGINE_ERRORS), closing(connect(engine := local_engine())) as client:
        return remove_orphans(client, own=engine.is_here)
    return 0


def remove_orphans(client: Any, *, own: bool, machine: MachineIdentity | None = None) -> int:
    """Remove what killed processes of this machine, whose reapers were killed too, left on an engine; returns how many
    containers, networks and volumes that were.

    Several machines may use one engine, and machines may be copies of each other. So an owner counts as gone only if it
    was a process that this one could see and that has ended, or if the thing was made on this machine's own engine
    before this machine booted. `own`: the engine runs on this machine; `machine`: None stands for this one.
    """
    machine = machine or this_machine()
    filters = {"label": OWNER_LABEL}
    try:
        containers = _containers(client, filters)
        networks, volumes = client.networks.list(filters=filters), client.volumes.list(filters=filters)
    except ENGINE_ERRORS:
        return 0  # without the whole list, anything may be in use
    running = {_labels(each).get(RUN_LABEL, "") for each in containers if _state(each) not in STOPPED_STATES}

    def is_orphan(thing: Any) -> bool:
        found = _labels(thing)
        parts = re.fullmatch(r"([^/:]+):([^/:]+):([^/]+)/(\d+)/(\d+)", found.get(OWNER_LABEL, ""))
        if parts is None:
            return False
        if parts[2] == machine.boot:
            return parts[3] == machine.namespace and bool(start_ticks(1)) and start_ticks(int(parts[4])) != parts[5]
        of_this = own and parts[1] == machine.id != UNKNOWN
        return of_this and found.get(RUN_LABEL, "") not in running and _created_s(thing) < machine.booted_s

    orphans = [[thing for thing in things if is_orphan(thing)] for things in (containers, networks, volumes)]
    for things in orphans:
        _remove(things)
    return sum(map(len, orphans))


def _listed(query: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """The results of a query; nothing where the engine does not answer."""
    with suppress(*ENGINE_ERRORS):
        yield from query()


def _remove(things: Iterable[Any]) -> None:
    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        list(pool.map(_quietly_remove, things))


def _quietly_remove(thing: Any) -> None:
    options = {"force": True, "v": True} if "State" in thing.attrs else {}  # a container
    with suppress(*ENGINE_ERRORS):
        thing.remove(**options)


def _containers(client: Any, filters: dict[str, str]) -> list[Any]:
    """Containers that match, stopped ones included."""
    found: list[Any] = client.containers.list(all=True, filters=filters, ignore_removed=True)
    return found


def _labels(thing: Any) -> dict[str, str]:
    attributes = thing.attrs
    found = attributes.get("Labels") or attributes.get("Config", {}).get("Labels") or {}
    return {str(key): str(value) for key, value in found.items()}


def _state(container: Any) -> str:
    return str((container.attrs.get("State") or {}).get("Status", UNKNOWN))


def _created_s(thing: Any) -> float:
    """Creation time in seconds since 1970; infinity where the engine does not report it."""
    created = str(thing.attrs.get("Created") or thing.attrs.get("CreatedAt") or "")
    try:
        moment = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", created))
    except ValueError:
        return float("inf")
    return moment.timestamp() if moment.tzinfo else float("inf")


@record
class ReaperTask:
    """The session that a reaper removes, and its engines."""

    token: str
    engines: tuple[Engine, ...]
    local: bool
    """True if the engine of this machine is one of them."""


class Reaper:
    """A child process that removes a session if this process is killed.

    It waits on its stdin: `done` means that nothing is left to remove, end of file without it means that this process
    is gone, or could not remove everything. Engines that do not answer are asked for REAPER_PATIENCE_S.
    """

    def __init__(self, task: ReaperTask) -> None:
        self._process = subprocess.Popen(
            [*child_command(0), __name__, OUTLIVES_STAGE],
            env=inherited_environment(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a signal to its owner's group must not reach it
        )
        self._stdin: IO[bytes] = self._process.stdin  # type: ignore[assignment]
        self._send(" ".join(json_io.text(task).split()).encode() + b"\n")

    def dismiss(self) -> None:
        """End the reaper because nothing is left to remove; safe to repeat."""
        if not self._stdin.closed:
            self._send(DONE)
            with suppress(BrokenPipeError):
                self._stdin.close()
        try:
            self._process.wait(REAPER_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def leave(self) -> None:
        """Let the reaper remove what this process could not, after its end; safe to repeat."""
        with suppress(BrokenPipeError):
            self._stdin.close()

    def _send(self, line: bytes) -> None:
        with suppress(BrokenPipeError):
            self._stdin.write(line)
            self._stdin.flush()


def main() -> int:
    """Run the reaper: wait for the end of stdin, then remove the session."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its owner only
    task = json_io.parse(ReaperTask, sys.stdin.buffer.readline(), "reaper task")
    if sys.stdin.buffer.readline() == DONE:
        return 0
    remove_patiently([*task.engines, *([None] if task.local else [])], task.token, time.sleep)
    return 0


def remove_patiently(
    engines: Sequence[Engine | None],
    token: str,
    pause: Callable[[float], None],
    open_client: Callable[[Engine | None], Any] = connect,
) -> None:
    """Remove a session from engines, and ask those again, for REAPER_PATIENCE_S, that do not answer. None: this
    machine's."""
    left = list(engines)
    for _ in range(round(REAPER_PATIENCE_S / REAPER_RETRY_S)):
        left = [engine for engine in left if not _removed(engine, token, pause, open_client)]
        if not left:
            return
        pause(REAPER_RETRY_S)


def _removed(
    engine: Engine | None, token: str, pause: Callable[[float], None], open_client: Callable[[Engine | None], Any]
) -> bool:
    with suppress(FleetuneError, *ENGINE_ERRORS), closing(open_client(engine)) as client:
        return remove_session(client, token, pause)
    return False


if __name__ == "__main__":
    sys.exit(main())
