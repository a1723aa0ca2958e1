"""Makes containers of one engine and image: what every one of them may do, see and use."""

import os
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from docker.types import DeviceRequest, LogConfig, Mount

import fleetune
from fleetune.contracts.record import record
from fleetune.errors import TryAgain
from fleetune.filesystem import check_symlinks
from fleetune.launching.docker import carry
from fleetune.launching.docker.archive import OWNER
from fleetune.launching.docker.job import ContainerJob
from fleetune.launching.docker.trouble import SILENT, why
from fleetune.launching.job import Command
from fleetune.launching.process import EVERY_CHILD

PACKAGES = ("fleetune", "stages", "containers")
PROJECT = Path(fleetune.__file__).parents[1]
TEMPORARY = "rw,nosuid,nodev,mode=1777,size=512m"
LOGS = LogConfig(type=LogConfig.types.JSON, config={"max-size": "20m", "max-file": "2"})


@record
class Yard:
    """An engine that answers, and the image to use there."""

    name: str
    client: Any
    image_id: str
    mounted: bool
    """Whether the image finds code and packages in folders of this machine."""
    here: bool
    """Whether its containers can see folders of this machine."""
    gpus: bool = False
    labels: Mapping[str, str]

    def code(self) -> dict[str, Any]:
        """Settings of a container that needs our code."""
        return {"environment": {**EVERY_CHILD, **_environment(self)}, "mounts": _code(self)}


@record
class Limits:
    """What binds a container; None does not."""

    cores: float | None = None
    memory_bytes: int | None = None
    gpu: bool = False


class Housing:
    """A launcher whose commands run in containers of `yard`, on `network` (an engine's network mode)."""

    def __init__(self, yard: Yard, network: str, limits: Limits, carried: "Carried") -> None:
        self._yard, self._network, self._limits, self._carried = yard, network, limits, carried

    def start(self, command: Command) -> ContainerJob:
        """Start a command; TryAgain when the engine cannot."""
        command.log.parent.mkdir(parents=True, exist_ok=True)
        for folder in command.writes:
            writable(folder)
        container = None
        try:
            container = create(
                self._yard,
                ["-P", "-m", "fleetune.launching.child", "0", command.module, *command.arguments],
                environment={**EVERY_CHILD, **command.environment, **_environment(self._yard)},
                mounts=[*_code(self._yard), *self._carried.mounts(command)],
                network_mode=self._network,
                stdin_open=bool(command.first_line),
                **_limited(self._limits, self._yard),
            )
            if command.first_line:
                tell(container, command.first_line)
            else:
                container.start()
        except BaseException as error:
            if container is not None:
                with suppress(*SILENT):
                    container.remove(force=True, v=True)
            if isinstance(error, SILENT):
                said = f"engine {self._yard.name} could not start it ({why(error)})"
                raise TryAgain(f"{command.module}: {said}") from None
            raise
        collect = None if self._yard.here else self._carried.collect
        return ContainerJob(container, command, self._limits.cores, collect)


def create(yard: Yard, command: list[str], **settings: Any) -> Any:
    """A container as all of ours are: nobody, without a capability, on a root that cannot be written to."""
    return yard.client.containers.create(
        yard.image_id,
        command,
        **{
            "user": user(yard),
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "read_only": True,
            "tmpfs": {"/tmp": TEMPORARY},
            "init": True,
            "labels": dict(yard.labels),
            "log_config": LOGS,
            "pids_limit": 512,
            **settings,
        },
    )


def user(yard: Yard) -> str:
    """Never root: the caller, so that both can write to shared folders, or the image's own user."""
    return f"{os.getuid()}:{os.getgid()}" if yard.here and os.getuid() else f"{OWNER}:{OWNER}"


def writable(folder: Path) -> None:
    """Make a folder that containers of root's may write to; a container at work there cannot lead this elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.getuid() != 0:
        return
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchown(top, OWNER, OWNER)
        for _, folders, files, place in os.fwalk(".", dir_fd=top):  # by descriptors: names may be swapped meanwhile
            for name in (*folders, *files):
                with suppress(FileNotFoundError):
                    os.chown(name, OWNER, OWNER, dir_fd=place, follow_symlinks=False)
    finally:
        os.close(top)


class Carried:
    """Folders that commands read and write: shared where the engine is on this machine, else carried over once."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self._volumes: dict[Path, str] = {}
        self._lock = threading.Lock()

    def mounts(self, command: Command) -> list[Mount]:
        """Folders at the same places as here; those it reads cannot be written to."""
        if self._yard.here:
            open_ones = set(command.writes)  # what lies inside is there with them
            reads = [folder for folder in dict.fromkeys(command.reads) if not open_ones & {folder, *folder.parents}]
            seen = {*reads, *command.writes}
            linked = {place for folder in reads for place in _linked(folder) if not seen & set(place.parents)}
            return [
                *(_bind(place, read_only=True) for place in (*reads, *sorted(linked))),
                *(_bind(folder, read_only=False) for folder in command.writes),
            ]
        yard, labels = self._yard, dict(self._yard.labels)
        with self._lock:  # what several devices of an engine read is carried once
            new = [folder for folder in command.reads if folder not in self._volumes]
            self._volumes.update(carry.put(yard.client, yard.image_id, new, labels))
        rooms = {folder: carry.room(yard.client, yard.image_id, folder, labels) for folder in command.writes}
        return [
            *(_volume(folder, self._volumes[folder], read_only=True) for folder in command.reads),
            *(_volume(folder, name, read_only=False) for folder, name in rooms.items()),
        ]

    def collect(self, container: Any, folder: Path) -> None:
        """Bring a folder that a container wrote over to this machine."""
        carry.fetch(container, folder)


def _linked(folder: Path) -> Iterator[Path]:
    """Files elsewhere that its links lead to: those of the hub's cache; Refused for any other."""
    check_symlinks(folder, "container")
    for path in folder.rglob("*"):
        if path.is_symlink() and path.exists() and folder.resolve() not in path.resolve().parents:
            yield path.resolve()


def _bind(folder: Path, *, read_only: bool) -> Mount:
    return Mount(target=str(folder), source=str(folder), type="bind", read_only=read_only)


def _volume(folder: Path, name: str, *, read_only: bool) -> Mount:
    return Mount(target=str(folder), source=name, type="volume", read_only=read_only)


def _code(yard: Yard) -> list[Mount]:
    """Code and packages of this machine, at the same places: what was compiled for these is found again."""
    if not yard.mounted:
        return []
    return [_bind(PROJECT / package, read_only=True) for package in PACKAGES] + [_bind(_packages(), read_only=True)]


def _environment(yard: Yard) -> dict[str, str]:
    known = {"FLEETUNE_IMAGE": "" if yard.mounted else yard.image_id}
    return {**known, "PYTHONPATH": f"{PROJECT}:{_packages()}"} if yard.mounted else known


def _packages() -> Path:
    return Path(sysconfig.get_path("purelib"))


def _limited(limits: Limits, yard: Yard) -> dict[str, Any]:
    """Its quota of processor time binds later (`ContainerJob.hold`)."""
    found: dict[str, Any] = {}
    if limits.memory_bytes is not None:
        found["mem_limit"] = found["memswap_limit"] = limits.memory_bytes
    if limits.gpu and yard.gpus:
        found["device_requests"] = [DeviceRequest(count=-1, capabilities=[["gpu"]])]
    return found


def tell(container: Any, first_line: bytes) -> None:
    """Start a container with its first line of stdin, and nothing after it."""
    line = container.attach_socket(params={"stdin": 1, "stream": 1})
    try:
        container.start()
        raw = getattr(line, "_sock", line)
        raw.sendall(first_line.rstrip(b"\n") + b"\n")
    finally:
        line._response.close()  # first: it holds the connection open
        line.close()
