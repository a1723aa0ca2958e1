"""The launcher that needs nothing: child processes of this one."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

from fleetune.errors import TryAgain
from fleetune.launching.job import Command, thread_environment
from fleetune.launching.memory import RAN_OUT, MemoryWatch

TAIL_BYTES = 1 << 16
EVERY_CHILD = {
    **thread_environment(1),  # a device's own processes get those of the device
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "PYTHONSAFEPATH": "1",  # for what they start in turn
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # progress is ours to tell; their bars would fill logs
}

NOT_INHERITED = ("PREFECT_API_AUTH_STRING",)
"""What only this process and its server know: no stage talks to that."""

# The kernel ties a child to the thread that started it, so one thread that lasts as long as the process starts all.
_STARTER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fleetune-launching")


class ProcessLauncher:
    """Starts children in sessions of their own (Ctrl-C reaches only this process); they die with this process."""

    def __init__(self, memory_bytes: int | None = None) -> None:
        """Each child is bound to `memory_bytes` where they are given."""
        self._memory_bytes = memory_bytes

    def start(self, command: Command) -> "ProcessJob":
        """Start a command; TryAgain when the system refuses another process."""
        command.log.parent.mkdir(parents=True, exist_ok=True)
        with command.log.open("ab") as log:
            try:
                process = _STARTER.submit(_spawn, command, log).result()
            except OSError as error:
                raise TryAgain(f"{command.module}: no process could be started ({error.strerror})") from None
        return ProcessJob(process, command, self._memory_bytes)


class ProcessJob:
    """A child process and whatever it starts within its own process group; the group ends with the child."""

    def __init__(self, process: subprocess.Popen[bytes], command: Command, memory_bytes: int | None = None) -> None:
        self._process = process
        self._log = command.log
        self._name = command.module
        self._ended = threading.Event()
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._memory = MemoryWatch(process.pid, memory_bytes) if memory_bytes is not None else None
        for target in (self._wait_for_end, self._read_lines):
            threading.Thread(target=target, name=f"fleetune-job-{process.pid}", daemon=True).start()
        self._say(command.first_line)

    def __repr__(self) -> str:
        return f"<{self._name} as process {self.pid}>"

    @property
    def pid(self) -> int:
        """Number of the child, of its process group and of its session."""
        return self._process.pid

    def lines(self) -> Iterator[str]:
        """Lines of stdout as they come; they are kept until read, so a child never waits for its reader."""
        while (line := self._lines.get()) is not None:
            yield line
        self._lines.put(None)  # whoever asks again learns the same

    def poll(self) -> int | None:
        """The exit code, None while the child runs."""
        return self._process.returncode if self._ended.is_set() else None

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The exit code, None when the child still runs after `timeout_s`."""
        self._ended.wait(timeout_s)
        return self.poll()

    def stop(self, grace_s: float = 2.0) -> int:
        """SIGTERM to the whole group, SIGKILL to what is left after `grace_s`; the exit code."""
        for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, None)):
            if not self._ended.is_set():
                with suppress(ProcessLookupError):
                    os.killpg(self.pid, number)
            code = self.wait(patience_s)
            if code is not None:
                return code
        raise AssertionError("a killed process ends")

    def tail(self, lines: int = 10) -> str:
        """The last lines of stderr."""
        with self._log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    def hold(self) -> None:
        """Nothing to do: an emulated process holds itself (`fleetune.launching.pace`)."""

    def collect(self, folder: Path) -> None:
        """Nothing to do: it writes on this machine."""

    @property
    def out_of_memory(self) -> bool:
        """Whether it held more than it may, or says that it was refused more."""
        return self.poll() == RAN_OUT or (self._memory is not None and self._memory.exceeded)

    @property
    def used_bytes(self) -> int | None:
        """Most memory that it was seen to hold."""
        return self._memory.used_bytes if self._memory is not None else None

    def _say(self, first_line: bytes) -> None:
        if self._process.stdin is None:
            return
        with suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(first_line.rstrip(b"\n") + b"\n")

    def _wait_for_end(self) -> None:
        with suppress(ChildProcessError, ProcessLookupError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)  # still a zombie: its group number stays taken
            if self._memory is not None:
                self._memory.end()
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._ended.set()
        if self._memory is not None:
            self._memory.release()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            for line in stdout:
                self._lines.put(line.decode(errors="replace").rstrip("\r\n"))
        self._lines.put(None)


def child_of(parent: int) -> list[str]:
    """What starts a child of process `parent` (0: of nobody), up to the name of its module: see child.py."""
    return [sys.executable, "-P", str(Path(__file__).with_name("child.py")), str(parent)]


def inherited(found: Mapping[str, str]) -> dict[str, str]:
    """What children get of this process's environment; an empty part of PYTHONPATH would be the working directory."""
    kept = {name: value for name, value in found.items() if name not in ("PYTHONPATH", *NOT_INHERITED)}
    places = os.pathsep.join(place for place in found.get("PYTHONPATH", "").split(os.pathsep) if place)
    return {**kept, **({"PYTHONPATH": places} if places else {})}


def _spawn(command: Command, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*child_of(os.getpid()), command.module, *command.arguments],
        env={**inherited(os.environ), **EVERY_CHILD, **command.environment},
        stdin=subprocess.PIPE if command.first_line else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
    )
