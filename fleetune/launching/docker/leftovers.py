"""What our containers leave on an engine, found by its labels: of a run that ends, or of an owner that is gone."""

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from fleetune.launching.docker.trouble import SILENT

RUN, OWNER = "fleetune.run", "fleetune.owner"
"""Labels: a token of whoever set it up, and that process (`machine:boot:namespace/number/start`)."""
AT_ONCE = 8
ATTEMPTS = 5


def labels(token: str) -> dict[str, str]:
    """What everything that this process makes on an engine is labelled with."""
    return {RUN: token, OWNER: owner(os.getpid())}


def owner(process: int) -> str:
    """A process so that none that comes later has the same name: numbers are used again."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{_machine()}:{boot}:{os.readlink('/proc/self/ns/pid')}/{process}/{_start(process)}"


def remove(client: Any, token: str) -> None:
    """Remove all that has this token: containers first, for they hold on to the rest."""
    _remove(client, {"label": f"{RUN}={token}"}, lambda found: True)


def sweep(client: Any) -> None:
    """Remove what processes of this machine have left behind that were killed, with their reapers."""
    _remove(client, {"label": OWNER}, _is_orphan)


def _remove(client: Any, filters: dict[str, str], wanted: Callable[[dict[str, str]], bool]) -> None:
    for _ in range(ATTEMPTS):  # a container that is just starting or ending may refuse
        containers: list[Any] = []
        with suppress(*SILENT):
            containers = [each for each in _containers(client, filters) if wanted(_labels(each))]
        if not containers:
            break
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda each: _quietly(lambda: each.remove(force=True, v=True)), containers))
    with suppress(*SILENT):
        for network in client.networks.list(filters=filters):
            if wanted(_labels(network)):
                _quietly(network.remove)
    with suppress(*SILENT):
        for volume in client.volumes.list(filters=filters):
            if wanted(_labels(volume)):
                _quietly(volume.remove)


def _containers(client: Any, filters: dict[str, str]) -> list[Any]:
    """Also those that have ended; one that vanishes meanwhile is none."""
    found: list[Any] = client.containers.list(all=True, filters=filters, ignore_removed=True)
    return found


def _labels(thing: Any) -> dict[str, str]:
    attributes = thing.attrs
    found = attributes.get("Labels") or attributes.get("Config", {}).get("Labels") or {}
    return {str(key): str(value) for key, value in found.items()}


def _is_orphan(found: dict[str, str]) -> bool:
    """Whether its owner was a process of this machine, that is no more: one whose number this process could see."""
    parts = re.fullmatch(r"(([^/:]+):[^/:]+:[^/]+)/(\d+)/(\d+)", found.get(OWNER, ""))
    if parts is None or parts[2] != _machine():
        return False  # of another machine
    here, boot = owner(os.getpid()).split("/")[0], parts[1].split(":")[1]
    if boot not in here:
        return True  # this machine has been started again since
    return parts[1] == here and bool(_start(1)) and _start(int(parts[3])) != parts[4]


def _machine() -> str:
    """The same for all processes of a machine, also after it was started again."""
    try:
        return Path("/etc/machine-id").read_text().strip() or "unknown"
    except OSError:
        return "unknown"


def _start(process: int) -> str:
    """When a process began, in ticks since the machine started; `` where there is none of that number."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _quietly(work: Callable[[], object]) -> None:
    with suppress(*SILENT):
        work()
