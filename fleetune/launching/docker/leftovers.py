"""What our containers leave on an engine, found by its labels: of a run that ends, or of an owner that is gone.

Several machines may use one engine, and machines may be copies of each other. So only what is certain to have no owner
is swept away: its owner was a process that this one could see, and is no more; or it was made on this machine's own
engine before this machine was started. Anything else may be somebody's who lives, and stays.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from fleetune.contracts.record import record
from fleetune.launching.docker.trouble import SILENT

RUN, OWNER, ENGINE = "fleetune.run", "fleetune.owner", "fleetune.engine"
"""Labels: a token of whoever set it up, that process (`machine:boot:namespace/number/start`), and the address by which
it reached an engine of another machine."""
UNKNOWN = "unknown"
AT_ONCE = 8
ATTEMPTS = 5
ENDED = ("created", "dead", "exited")
"""States of containers that are not running."""


@record
class Machine:
    """What tells machines apart, as a process of one sees it."""

    id: str
    """The same after it was started again; UNKNOWN where it has none. Copies of a machine share it."""
    boot: str
    """Drawn whenever a kernel starts."""
    namespace: str
    """Of the processes that are seen."""
    booted_s: float
    """When its kernel started, in seconds since 1970."""


def this_machine() -> Machine:
    """As this process sees it."""
    try:
        found = Path("/etc/machine-id").read_text().strip()
    except OSError:
        found = ""
    ticks = re.search(r"^btime (\d+)$", Path("/proc/stat").read_text(), re.MULTILINE)
    return Machine(
        id=found or UNKNOWN,
        boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        namespace=os.readlink("/proc/self/ns/pid"),
        booted_s=float(ticks[1]) if ticks else 0.0,
    )


def labels(token: str) -> dict[str, str]:
    """What everything that this process makes on an engine is labelled with."""
    return {RUN: token, OWNER: owner(os.getpid())}


def owner(process: int) -> str:
    """A process so that none that comes later has the same name: numbers are used again."""
    here = this_machine()
    return f"{here.id}:{here.boot}:{here.namespace}/{process}/{_start(process)}"


def remove(client: Any, token: str) -> None:
    """Remove all that has this token."""
    _remove_all(client, {"label": f"{RUN}={token}"})


def remove_guests(client: Any, address: str) -> None:
    """Remove all that was made by way of this address of an engine."""
    _remove_all(client, {"label": f"{ENGINE}={address}"})


def _remove_all(client: Any, filters: dict[str, str]) -> None:
    """Containers first, for they hold on to the rest."""
    for _ in range(ATTEMPTS):  # a container that is just starting or ending may refuse
        containers = list(_found(lambda: _containers(client, filters)))
        if not containers:
            break
        _remove(containers)
    _remove(_found(lambda: client.networks.list(filters=filters)))
    _remove(_found(lambda: client.volumes.list(filters=filters)))


def sweep(client: Any, *, own: bool, here: Machine | None = None) -> None:
    """Remove what processes of this machine have left behind that were killed, with their reapers.

    `own`: the engine runs on this machine. `here` is this machine.
    """
    machine = here or this_machine()
    filters = {"label": OWNER}
    try:
        containers = _containers(client, filters)
        networks, volumes = client.networks.list(filters=filters), client.volumes.list(filters=filters)
    except SILENT:
        return  # what is not known to be used may be
    running = {_labels(each).get(RUN, "") for each in containers if _state(each) not in ENDED}

    def orphan(thing: Any) -> bool:
        found = _labels(thing)
        parts = re.fullmatch(r"([^/:]+):([^/:]+):([^/]+)/(\d+)/(\d+)", found.get(OWNER, ""))
        if parts is None:
            return False
        if parts[2] == machine.boot:
            return parts[3] == machine.namespace and bool(_start(1)) and _start(int(parts[4])) != parts[5]
        of_this = own and parts[1] == machine.id != UNKNOWN
        return of_this and found.get(RUN, "") not in running and _made_s(thing) < machine.booted_s

    for things in (containers, networks, volumes):
        _remove([thing for thing in things if orphan(thing)])


def _found(ask: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """What an engine lists; nothing where it does not answer."""
    with suppress(*SILENT):
        yield from ask()


def _remove(things: Iterable[Any]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(_quietly_remove, things))


def _quietly_remove(thing: Any) -> None:
    forced = {"force": True, "v": True} if "State" in thing.attrs else {}  # containers
    with suppress(*SILENT):
        thing.remove(**forced)


def _containers(client: Any, filters: dict[str, str]) -> list[Any]:
    """Also those that have ended; one that vanishes meanwhile is none."""
    found: list[Any] = client.containers.list(all=True, filters=filters, ignore_removed=True)
    return found


def _labels(thing: Any) -> dict[str, str]:
    attributes = thing.attrs
    found = attributes.get("Labels") or attributes.get("Config", {}).get("Labels") or {}
    return {str(key): str(value) for key, value in found.items()}


def _state(container: Any) -> str:
    return str((container.attrs.get("State") or {}).get("Status", UNKNOWN))


def _made_s(thing: Any) -> float:
    """When an engine made something, in seconds since 1970; infinitely late where it does not say so."""
    said = str(thing.attrs.get("Created") or thing.attrs.get("CreatedAt") or "")
    try:
        made = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", said))
    except ValueError:
        return float("inf")
    return made.timestamp() if made.tzinfo else float("inf")


def _start(process: int) -> str:
    """When a process began, in ticks since the machine started; `` where there is none of that number."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
