"""Both sides of joining for the tests: a host and devices on the loopback interface, each in a thread."""

import queue
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from fleetune.contracts.fleet_request import Join
from fleetune.discovery.joining import JoinedDevice, collect_devices
from fleetune.discovery.joining.device_side import JoinOptions, serve
from fleetune.discovery.joining.network import LOOPBACK, LocalNetwork

PATIENCE_S = 60.0


def token_file(folder: Path, token: str = "correct horse battery staple") -> Path:
    """Write a valid token file."""
    path = folder / f"token-{len(token)}"
    path.touch(0o600)
    path.write_text(token + "\n")
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    return path


@dataclass
class Said:
    """Sentences of a side, in order."""

    sentences: "queue.SimpleQueue[str]" = field(default_factory=queue.SimpleQueue)

    def wait(self, words: str) -> str:
        """Return the first sentence that contains these words and drop earlier ones; fail with all sentences heard."""
        heard = []
        deadline_s = time.monotonic() + PATIENCE_S
        try:
            while True:
                heard.append(self.sentences.get(timeout=max(0.0, deadline_s - time.monotonic())))
                if words in heard[-1]:
                    return heard[-1]
        except queue.Empty:
            raise AssertionError(f"nobody said {words!r}, but {heard}") from None


class Host:
    """Host that listens until `end`, regardless of the time."""

    def __init__(self, token: Path, folder: Path, port: int) -> None:
        self.said = Said()
        self.folder = folder
        self._over = threading.Event()
        self._outcome: tuple[JoinedDevice, ...] | BaseException = ()
        self._thread = threading.Thread(target=self._run, args=(token, port))
        self._thread.start()
        listening = self.said.wait("listening")
        self.port = int(re.findall(r"port (\d+)", listening)[0])

    def end(self) -> tuple[JoinedDevice, ...]:
        """End the host and return the devices that joined, or raise its error."""
        self._over.set()
        return self.outcome()

    def outcome(self) -> tuple[JoinedDevice, ...]:
        """Wait for the host to end by itself; result as of `end`."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def leave(self) -> None:
        """End the host and ignore its result."""
        self._over.set()
        self._thread.join()

    def _run(self, token: Path, port: int) -> None:
        here = LocalNetwork(
            addresses=(LOOPBACK,),
            port=port,
            clock=lambda: 2.0 if self._over.is_set() else 0.0,
            now=lambda: datetime(2026, 1, 2, tzinfo=UTC),
        )
        try:
            self._outcome = collect_devices(
                Join(token_file=str(token), wait_s=1), self.folder, self.said.sentences.put, here
            )
        except BaseException as error:
            self._outcome = error
            self.said.sentences.put(f"ended listening: {error}")


@contextmanager
def host(token: Path, folder: Path, port: int = 0) -> Iterator[Host]:
    """Run a host until the end of the block."""
    made = Host(token, folder, port)
    try:
        yield made
    finally:
        made.leave()


@dataclass
class Devices:
    """Starts devices and ends them all."""

    engine: str
    token: Path
    running: list[tuple[threading.Event, threading.Thread]] = field(default_factory=list)

    def start(
        self,
        name: str = "nano-1",
        host_port: int | None = None,
        token: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Said:
        """Start a device that finds hosts by mDNS, or connects to one port."""
        said, ended = Said(), threading.Event()
        joining = JoinOptions(
            name=name,
            token_file=token or self.token,
            engine=self.engine,
            host=(LOOPBACK, host_port) if host_port is not None else None,
        )
        here = LocalNetwork(addresses=(LOOPBACK,), clock=clock)
        thread = threading.Thread(target=serve, args=(joining, said.sentences.put, ended, here))
        thread.start()
        self.running.append((ended, thread))
        return said

    def end(self) -> None:
        """End all that run."""
        for ended, _ in self.running:
            ended.set()
        for _, thread in self.running:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        self.running.clear()
