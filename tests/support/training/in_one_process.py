"""Workers as threads of the test's process, whose messages stay in memory; all else is the product's.

What needs a process of its own - kills, threads of torch, limits of memory and of the processor - is tested with
processes, and each strategy trains once over both (tests/training/test_in_one_process.py).
"""

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.errors import FleetuneError
from fleetune.launching import Command, Job
from fleetune.links.message import Message
from fleetune.training.exchange import Exchange
from fleetune.training.task import WorkerKeys, WorkerTask
from fleetune.training.worker import serve
from tests.support.links.in_memory import MemoryEndpoint, MemoryLinks

JOIN_S = 60.0


class ThreadJob:
    """A worker that runs in a thread."""

    pid = 0
    out_of_memory = False
    used_bytes = None

    def __init__(self, command: Command, links: MemoryLinks) -> None:
        self._task = json_io.read(WorkerTask, Path(command.arguments[1]))
        self._keys = json_io.parse(WorkerKeys, command.first_line, "keys")
        assert self._task.threads == 1 and self._task.cores is None and self._task.accelerator == "cpu"
        self._links = links
        self._endpoint: MemoryEndpoint | None = None
        self._code: int | None = None
        self._thread = threading.Thread(target=self._run, name=f"worker-{self._task.device}", daemon=True)
        self._thread.start()

    def lines(self) -> Iterator[str]:
        """Return no lines: it has no stdout."""
        return iter(())

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""
        return None if self._thread.is_alive() else self._code

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for its end."""
        self._thread.join(timeout_s)
        return self.poll()

    def stop(self, grace_s: float = 2.0) -> int:
        """Tell it to stop, as a thread cannot be killed."""
        endpoint = self._endpoint
        if endpoint is not None:
            with suppress(FleetuneError):
                endpoint.take_in("coordinator", Message("stop", {}))
        code = self.wait(JOIN_S)
        assert code is not None, f"the worker of {self._task.device} does not end"
        return code

    def tail(self, lines: int = 10) -> str:
        """Return '': it has no log."""
        return ""

    def limit_cpu(self) -> None:
        """Do nothing: it has no CPU share."""

    def memory_share(self) -> float | None:
        """Return None: nothing tells."""
        return None

    def collect(self, folder: Path, into: Path) -> None:
        """Do nothing: it writes on this machine."""

    def _run(self) -> None:
        self._links.baton.take()
        try:
            self._code = serve(self._task, self._keys, self._made, Exchange, self._abandoned)
        except BaseException:
            self._code = 1
            raise
        finally:
            self._links.baton.give()

    def _made(self, *given: object, **named: object) -> MemoryEndpoint:
        self._endpoint = self._links.endpoint(*given, **named)  # type: ignore[arg-type]
        return self._endpoint

    def _abandoned(self, exchange: Exchange, why: str) -> None:
        raise AssertionError(f"{self._task.device} was abandoned: {why}")


class ThreadLauncher:
    """Starts workers as threads."""

    def __init__(self, links: MemoryLinks) -> None:
        self._links = links

    def start(self, command: Command) -> Job:
        """Start a worker."""
        return ThreadJob(command, self._links)
