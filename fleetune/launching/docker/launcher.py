"""Launcher of commands in containers of one engine: limits, mounts, output, exit."""

import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from docker.errors import NotFound
from docker.types import DeviceRequest, Mount

from fleetune.contracts.record import record
from fleetune.errors import TryAgain
from fleetune.filesystem import check_symlinks
from fleetune.launching.child import IN_CONTAINER, MARK
from fleetune.launching.docker import folder_transfer
from fleetune.launching.docker.engine_client import ENGINE_ERRORS, describe_error
from fleetune.launching.docker.session import EngineContext, bind_mount, start_with_input
from fleetune.launching.docker.tar_archive import IMAGE_USER
from fleetune.launching.job import AFTER_KILL_S, SILENT_CODE, Command, open_log
from fleetune.launching.life_watch import USUAL, LifeWatch

GRACE_S = 2.0
MIN_PERIOD_US, MIN_QUOTA_US = 10_000, 1_000
"""Short periods make a CPU quota smooth; the kernel accepts no quota below a millisecond."""
LOST_EXIT_CODE = 255
"""Exit code of a container that its engine no longer knows."""
ENGINE_RETRY_S = 0.5
"""Pause before an engine that could not be asked is asked again."""
TAIL_BYTES = 1 << 16
RUN_CHILD = (
    "import importlib.util, runpy; (found,) = importlib.util.find_spec('fleetune').submodule_search_locations; "
    "runpy.run_path(f'{found}/launching/child.py', run_name='__main__')"
)
"""Runs child.py by its file's path, wherever the image has it: nothing is imported before it forks what shows its life,
which so takes little memory."""


@record
class ContainerLimits:
    """Limits of a container; None does not bind."""

    cores: float | None = None
    memory_bytes: int | None = None
    gpu: bool = False

    def settings(self, engine: EngineContext) -> dict[str, Any]:
        """Settings of a new container; its CPU quota is applied later, by `ContainerJob.limit_cpu`."""
        found: dict[str, Any] = {}
        if self.memory_bytes is not None:
            found["mem_limit"] = found["memswap_limit"] = self.memory_bytes
        if self.gpu and engine.gpus:
            found["device_requests"] = [DeviceRequest(count=-1, capabilities=[["gpu"]])]
        return found


class DockerLauncher:
    """Starts commands in containers on `network` (an engine's network mode)."""

    def __init__(
        self,
        engine: EngineContext,
        network: str,
        limits: ContainerLimits,
        folder_mounts: "FolderMounts",
        watch: LifeWatch = USUAL,
    ) -> None:
        self._engine, self._network, self._limits, self._folder_mounts = engine, network, limits, folder_mounts
        self._watch = watch

    def start(self, command: Command) -> "ContainerJob":
        """Start a command; TryAgain when the engine cannot."""
        for folder in (*command.writes, *(command.device_writes if self._engine.is_here else ())):
            make_writable(folder)
        container = None
        try:
            parent = IN_CONTAINER if command.watched else "0"
            container = self._engine.create_python_container(
                ["-c", RUN_CHILD, parent, command.module, *command.arguments],
                environment=command.environment,
                mounts=self._folder_mounts.mounts(command),
                network_mode=self._network,
                stdin_open=bool(command.first_line),
                **self._limits.settings(self._engine),
            )
            if command.first_line:
                start_with_input(container, command.first_line)
            else:
                container.start()
        except BaseException as error:
            if container is not None:
                with suppress(*ENGINE_ERRORS):
                    container.remove(force=True, v=True)
            if isinstance(error, ENGINE_ERRORS):
                reason = f"engine {self._engine.name} could not start it ({describe_error(error)})"
                raise TryAgain(f"{command.module}: {reason}") from None
            raise
        collect = None if self._engine.is_here else folder_transfer.fetch_folder
        return ContainerJob(container, command, self._limits.cores, collect, self._watch)


class FolderMounts:
    """Mounts for the folders of commands: bind mounts where the engine is on this machine, else filled volumes."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self._volumes: dict[tuple[Path, int], str] = {}
        """Folder and mark of its content -> its volume; a folder that has changed is uploaded again."""
        self._kept: dict[Path, str] = {}
        """Folder of a device's own -> its volume, which commands of the session share."""
        self._lock = threading.Lock()

    def mounts(self, command: Command) -> list[Mount]:
        """Mounts of a command's folders at their own paths; those it only reads are read-only."""
        return [*self._mounts_from_here(command), *self._mounts_of_device(command)]

    def _mounts_of_device(self, command: Command) -> Iterator[Mount]:
        """Yield mounts of what lies on the engine's machine, of which nothing is uploaded."""
        yield from (bind_mount(path, read_only=True) for path in command.device_reads)
        if self._engine.is_here:
            yield from (bind_mount(folder, read_only=False) for folder in command.device_writes)
            return
        client, image_id, labels = self._engine.client, self._engine.image_id, dict(self._engine.labels)
        with self._lock:
            for folder in command.device_writes:
                if folder not in self._kept:
                    self._kept[folder] = folder_transfer.empty_volume(client, image_id, folder, labels)
        yield from (_volume_mount(folder, self._kept[folder], read_only=False) for folder in command.device_writes)

    def _mounts_from_here(self, command: Command) -> list[Mount]:
        if self._engine.is_here:
            writable, live = set(command.writes), set(command.live_reads)  # folders inside are mounted with them
            reads = [
                folder
                for folder in dict.fromkeys((*command.live_reads, *command.reads))
                if not writable & {folder, *folder.parents} and not live & set(folder.parents)
            ]
            mounted = {*reads, *command.writes}
            linked = {path for folder in reads for path in _link_targets(folder) if not mounted & set(path.parents)}
            return [
                *(bind_mount(path, read_only=True) for path in (*reads, *sorted(linked))),
                *(bind_mount(folder, read_only=False) for folder in command.writes),
            ]
        client, image_id, labels = self._engine.client, self._engine.image_id, dict(self._engine.labels)
        with self._lock:  # a folder that several devices of an engine read is uploaded once
            marks = {folder: content_mark(folder) for folder in command.reads}
            new = [folder for folder, mark in marks.items() if (folder, mark) not in self._volumes]
            made = folder_transfer.upload_folders(client, image_id, new, labels)
            self._volumes.update({(folder, marks[folder]): name for folder, name in made.items()})
        empty = {folder: folder_transfer.empty_volume(client, image_id, folder, labels) for folder in command.writes}
        return [
            *(_volume_mount(folder, self._volumes[folder, mark], read_only=True) for folder, mark in marks.items()),
            *(_volume_mount(folder, name, read_only=False) for folder, name in empty.items()),
        ]


def content_mark(folder: Path) -> int:
    """Return a number that changes with the names, sizes and times of a folder's files."""
    found: list[tuple[str, int, int]] = []
    for path in sorted((folder, *folder.rglob("*"))):
        with suppress(OSError):  # it is gone again
            if path.is_file():
                found.append((str(path), path.stat().st_size, path.stat().st_mtime_ns))
    return hash(tuple(found))


class ContainerJob:
    """A command in a started container; the container is removed when the job is stopped or its session closes.

    One that shows no sign of life, as neither does an engine out of reach, is killed and given up.
    """

    def __init__(
        self,
        container: Any,
        command: Command,
        cores: float | None,
        collect: Callable[[Any, Path, Path], None] | None,
        watch: LifeWatch = USUAL,
    ) -> None:
        self._container, self._command = container, command
        self._cores, self._collect = cores, collect
        self._ended, self._stopping = threading.Event(), threading.Event()
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._code = LOST_EXIT_CODE
        self._out_of_memory = self._silent = False
        self._marks = 0
        readers = [self._thread(self._read_lines), self._thread(self._read_log)]
        self._thread(lambda: self._wait_for_end(readers))
        if command.watched:
            watch.follow(container.short_id, lambda: self._marks, self._ended.wait, self._end_silent)

    def __repr__(self) -> str:
        return f"<{self._command.module} in container {self._container.short_id}>"

    @property
    def pid(self) -> int:
        """Process id on the machine of its engine; 0 once it has ended."""
        self._container.reload()
        return int(self._container.attrs["State"]["Pid"])

    @property
    def out_of_memory(self) -> bool:
        """True if the engine reports that it hit its memory limit."""
        return self._out_of_memory

    @property
    def used_bytes(self) -> int | None:
        """None: the engine does not report it."""
        return None

    def memory_share(self) -> float | None:
        """Share of its memory limit that is in use now and cannot be reclaimed; None if the engine does not tell."""
        with suppress(*ENGINE_ERRORS):
            return filled_share(self._container.stats(stream=False, one_shot=True).get("memory_stats", {}))
        return None

    def lines(self) -> Iterator[str]:
        """Lines of stdout as they come; they are buffered until read."""
        while (line := self._lines.get()) is not None:
            yield line
        self._lines.put(None)  # a second iteration ends at once

    def poll(self) -> int | None:
        """Exit code; None while it runs."""
        if not self._ended.is_set():
            return None
        return SILENT_CODE if self._silent and self._code in (LOST_EXIT_CODE, 137) else self._code

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Exit code; None when it still runs after `timeout_s`."""
        self._ended.wait(timeout_s)
        return self.poll()

    def stop(self, grace_s: float = GRACE_S) -> int:
        """Send SIGTERM, SIGKILL after `grace_s`, then remove the container; returns the exit code."""
        self._stopping.set()
        if not self._ended.is_set():
            with suppress(*ENGINE_ERRORS):
                self._container.stop(timeout=max(0, round(grace_s)))
            self._ended.wait(grace_s + 10.0)
        with suppress(*ENGINE_ERRORS):
            self._container.remove(force=True, v=True)
        code = self.poll()
        return self._code if code is None else code

    def tail(self, lines: int = 10) -> str:
        """The last lines of stderr."""
        try:
            return "\n".join(
                self._command.log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").splitlines()[-lines:]
            )
        except OSError:
            return ""

    def limit_cpu(self) -> None:
        """Apply the CPU quota; TryAgain when the engine cannot."""
        if self._cores is None:
            return
        period_us, quota_us = cpu_quota(self._cores)
        try:
            self._container.update(cpu_period=period_us, cpu_quota=quota_us)
        except ENGINE_ERRORS as error:
            if self._ended.wait(GRACE_S):
                return  # its exit code says why
            reason = f"its container could not be held to {self._cores:g} cores ({describe_error(error)})"
            raise TryAgain(f"{self._command.module}: {reason}") from None

    def collect(self, folder: Path, into: Path) -> None:
        """Fetch what the command wrote to a folder, where its engine is on another machine."""
        if self._collect is not None:
            self._collect(self._container, folder, into)

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, name=f"fleetune-{self._container.short_id}", daemon=True)
        thread.start()
        return thread

    def _read_lines(self) -> None:
        rest = b""
        with suppress(*ENGINE_ERRORS):
            for chunk in _output(self._container, stdout=True):
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    self._lines.put(line.decode(errors="replace").rstrip("\r"))
        if rest:
            self._lines.put(rest.decode(errors="replace"))
        self._lines.put(None)

    def _read_log(self) -> None:
        with open_log(self._command.log) as log, suppress(*ENGINE_ERRORS):
            begun = b""
            for chunk in _output(self._container, stdout=False):
                text = begun + chunk
                begun = text[-1:] if text.endswith(MARK[:1]) else b""  # half a mark, maybe
                text = text.removesuffix(begun)
                self._marks += text.count(MARK)
                log.write(text.replace(MARK, b""))
                log.flush()

    def _end_silent(self) -> None:
        self._silent = True
        self._stopping.set()
        self._thread(self._kill)
        if not self._ended.wait(AFTER_KILL_S):
            self._lines.put(None)
            self._ended.set()

    def _kill(self) -> None:
        with suppress(*ENGINE_ERRORS):
            self._container.kill()
        with suppress(*ENGINE_ERRORS):
            self._container.unpause()  # some engines kill nothing that is paused

    def _wait_for_end(self, readers: list[threading.Thread]) -> None:
        self._code = self._await_code()
        with suppress(*ENGINE_ERRORS):
            self._container.reload()
            killed = self._code == 137 and not self._stopping.is_set()
            self._out_of_memory = bool(self._container.attrs["State"]["OOMKilled"]) and (killed or self._code != 0)
        for reader in readers:
            reader.join(GRACE_S)  # all output is there before the end is announced
        self._ended.set()

    def _await_code(self) -> int:
        """Wait for the container's exit code; an engine that cannot be asked does not mean that it has ended."""
        while True:
            try:
                return int(self._container.wait()["StatusCode"])
            except NotFound:
                return LOST_EXIT_CODE
            except ENGINE_ERRORS:
                if self._stopping.wait(ENGINE_RETRY_S):
                    return LOST_EXIT_CODE


def make_writable(folder: Path) -> None:
    """Make a folder, and where this process is root's give it to the images' user.

    It works on descriptors and follows no link, so that a running container that swaps names cannot redirect it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if os.getuid() != 0:
        return
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchown(top, IMAGE_USER, IMAGE_USER)
        for _, folders, files, descriptor in os.fwalk(".", dir_fd=top):
            for name in (*folders, *files):
                with suppress(FileNotFoundError):
                    os.chown(name, IMAGE_USER, IMAGE_USER, dir_fd=descriptor, follow_symlinks=False)
    finally:
        os.close(top)


def cpu_quota(cores: float) -> tuple[int, int]:
    """(period, quota) in microseconds for a share of processor time."""
    period_us = max(MIN_PERIOD_US, round(MIN_QUOTA_US / cores))
    return period_us, max(MIN_QUOTA_US, round(cores * period_us))


def filled_share(memory: Mapping[str, Any]) -> float | None:
    """Return the share of a limit that is in use, without files that can be read again; None if they do not tell.

    memory: `memory_stats` of an engine, of either version of control groups.
    """
    limit, used, more = memory.get("limit"), memory.get("usage"), memory.get("stats", {})
    if not limit or used is None:
        return None
    files = sum(more.get(f"total_{kind}", more.get(kind, 0)) for kind in ("inactive_file", "active_file"))
    return float((used - files) / limit)


def _output(container: Any, *, stdout: bool) -> Iterator[bytes]:
    """Chunks of a container's stdout or stderr as they come, to its end."""
    which = {"stdout": stdout, "stderr": not stdout}
    stream = container.logs(stream=True, follow=True, **which)
    length = 0
    try:
        for chunk in stream:
            length += len(chunk)
            yield chunk
    finally:
        stream._response.close()  # the library leaves its socket open
    if rest := container.logs(**which)[length:]:  # engines may leave out an unfinished last line while following
        yield rest


def _link_targets(folder: Path) -> Iterator[Path]:
    """Yield the targets outside `folder` that links in it lead to. Refused: a target outside the hub's cache."""
    check_symlinks(folder, "container")
    for path in folder.rglob("*"):
        if path.is_symlink() and path.exists() and folder.resolve() not in path.resolve().parents:
            yield path.resolve()


def _volume_mount(folder: Path, name: str, *, read_only: bool) -> Mount:
    return Mount(target=str(folder), source=name, type="volume", read_only=read_only)
