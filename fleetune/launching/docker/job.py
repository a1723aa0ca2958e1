"""A command in a container."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fleetune.errors import TryAgain
from fleetune.launching.docker.trouble import SILENT, why
from fleetune.launching.job import Command

GRACE_S = 2.0
SHORTEST_PERIOD_US, LEAST_QUOTA_US = 10_000, 1_000
"""Short periods make a quota smooth; the kernel takes no quota below a millisecond."""
LOST = 255
"""Exit code of a container that its engine no longer knows."""
TAIL_BYTES = 1 << 16


class ContainerJob:
    """A started container; it is removed when it is stopped or its site closes."""

    def __init__(
        self, container: Any, command: Command, cores: float | None, collect: Callable[[Any, Path], None] | None
    ) -> None:
        self._container, self._command = container, command
        self._cores, self._collect = cores, collect
        self._ended = threading.Event()
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._code = LOST
        self._stopping = self._out_of_memory = False
        streams = [self._thread(self._read_lines), self._thread(self._read_log)]
        self._thread(lambda: self._wait_for_end(streams))

    def __repr__(self) -> str:
        return f"<{self._command.module} in container {self._container.short_id}>"

    @property
    def pid(self) -> int:
        """Its process on the machine of its engine; 0 once it has ended."""
        self._container.reload()
        return int(self._container.attrs["State"]["Pid"])

    @property
    def out_of_memory(self) -> bool:
        """Whether the engine says that it hit its memory limit."""
        return self._out_of_memory

    @property
    def used_bytes(self) -> int | None:
        """Not known: its engine only says that it was too much."""
        return None

    def lines(self) -> Iterator[str]:
        """Lines of stdout as they come; they are kept until read."""
        while (line := self._lines.get()) is not None:
            yield line
        self._lines.put(None)  # whoever asks again learns the same

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return self._code if self._ended.is_set() else None

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The exit code, None when it still runs after `timeout_s`."""
        self._ended.wait(timeout_s)
        return self.poll()

    def stop(self, grace_s: float = GRACE_S) -> int:
        """SIGTERM, SIGKILL after `grace_s`, then the container is removed; the exit code."""
        self._stopping = True
        if not self._ended.is_set():
            with suppress(*SILENT):
                self._container.stop(timeout=max(0, round(grace_s)))
            self._ended.wait(grace_s + 10.0)
        with suppress(*SILENT):
            self._container.remove(force=True, v=True)
        return self._code

    def tail(self, lines: int = 10) -> str:
        """The last lines of stderr."""
        try:
            return "\n".join(
                self._command.log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").splitlines()[-lines:]
            )
        except OSError:
            return ""

    def hold(self) -> None:
        """Bind it to its quota of processor time."""
        if self._cores is None:
            return
        period_us, quota_us = quota(self._cores)
        try:
            self._container.update(cpu_period=period_us, cpu_quota=quota_us)
        except SILENT as error:
            if self._ended.wait(GRACE_S):
                return  # whoever waits for it says why
            raise TryAgain(
                f"{self._command.module}: its container could not be held to {self._cores:g} cores ({why(error)})"
            ) from None

    def collect(self, folder: Path) -> None:
        """Bring over what it has written, where its engine is elsewhere."""
        if self._collect is not None:
            self._collect(self._container, folder)

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, name=f"fleetune-{self._container.short_id}", daemon=True)
        thread.start()
        return thread

    def _read_lines(self) -> None:
        rest = b""
        with suppress(*SILENT):
            for chunk in said(self._container, stdout=True):
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    self._lines.put(line.decode(errors="replace").rstrip("\r"))
        if rest:
            self._lines.put(rest.decode(errors="replace"))
        self._lines.put(None)

    def _read_log(self) -> None:
        with self._command.log.open("ab") as log, suppress(*SILENT):
            for chunk in said(self._container, stdout=False):
                log.write(chunk)
                log.flush()

    def _wait_for_end(self, streams: list[threading.Thread]) -> None:
        with suppress(*SILENT):
            self._code = int(self._container.wait()["StatusCode"])
        with suppress(*SILENT):
            self._container.reload()
            killed = self._code == 137 and not self._stopping
            self._out_of_memory = bool(self._container.attrs["State"]["OOMKilled"]) and (killed or self._code != 0)
        for stream in streams:
            stream.join(GRACE_S)  # all has been said before anybody learns of the end
        self._ended.set()


def quota(cores: float) -> tuple[int, int]:
    """(period, quota) in microseconds for a share of processor time."""
    period_us = max(SHORTEST_PERIOD_US, round(LEAST_QUOTA_US / cores))
    return period_us, max(LEAST_QUOTA_US, round(cores * period_us))


def said(container: Any, *, stdout: bool) -> Iterator[bytes]:
    """What a container writes to stdout or to stderr, piece by piece as it comes, to its end."""
    which = {"stdout": stdout, "stderr": not stdout}
    stream = container.logs(stream=True, follow=True, **which)
    told = 0
    try:
        for chunk in stream:
            told += len(chunk)
            yield chunk
    finally:
        stream._response.close()  # the library leaves its socket open
    if rest := container.logs(**which)[told:]:  # engines may leave out a last line without an end, followed
        yield rest
