"""Launcher of local child processes; needs no engine."""

import functools
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
from fleetune.launching.child import processor_time_ns
from fleetune.launching.forking import ForkedChild, Start, fork_child
from fleetune.launching.job import AFTER_KILL_S, SILENT_CODE, Command, open_log, thread_environment
from fleetune.launching.life_watch import USUAL, LifeWatch
from fleetune.launching.process_limits import OUT_OF_MEMORY_EXIT_CODE, MemoryWatchdog

TAIL_BYTES = 1 << 16
CHILD_ENVIRONMENT = {
    **thread_environment(1),  # a command for a device sets the device's number
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "PYTHONSAFEPATH": "1",  # for processes that a child starts
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # its progress bars would fill the logs
    "HF_DEACTIVATE_ASYNC_LOAD": "1",  # as fleetune.models.weights sets it: a change of it would need a new fork server
}

NOT_INHERITED = ("PREFECT_API_AUTH_STRING", "PREFECT_SERVER_DATABASE_CONNECTION_URL")
"""Secrets of Prefect's server, its clients and its database, which stages must not reach."""

# The kernel ties a child to the thread that started it, so one thread that lasts as long as this process starts all.
_STARTER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fleetune-launching")


class ProcessLauncher:
    """Starts child processes in sessions of their own (Ctrl-C reaches only this process) that die with this process."""

    def __init__(self, memory_bytes: int | None = None, watch: LifeWatch = USUAL) -> None:
        """`memory_bytes`: limit of each child; None: no limit."""
        self._memory_bytes, self._watch = memory_bytes, watch

    def start(self, command: Command) -> "ProcessJob":
        """Start a command; TryAgain when the system refuses another process."""
        with open_log(command.log) as log:
            try:
                process = _start(command, log, self._watch)
            except OSError as error:
                raise TryAgain(f"{command.module}: no process could be started ({error.strerror})") from None
        return ProcessJob(process, command, self._memory_bytes, self._watch)


class SpawnedChild:
    """A child process that was started by itself."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._process = process
        self.pid, self.stdin, self.stdout = process.pid, process.stdin, process.stdout

    @property
    def returncode(self) -> int | None:
        """Exit code (minus the signal's number), once it was reaped."""
        return self._process.returncode

    def wait_for_end(self) -> None:
        """Wait until the child has ended; its process id stays taken until `reap`."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def reap(self) -> None:
        """Release the process id."""
        self._process.wait()


class ProcessJob:
    """A child process and its process group; the group is killed when the child ends, or shows no sign of life."""

    def __init__(
        self,
        process: "SpawnedChild | ForkedChild",
        command: Command,
        memory_bytes: int | None,
        watch: LifeWatch,
    ) -> None:
        self._process = process
        self._log = command.log
        self._name = command.module
        self._ended = threading.Event()
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._memory = MemoryWatchdog(process.pid, memory_bytes) if memory_bytes is not None else None
        self._silent = False
        for target in (self._wait_for_end, self._read_lines):
            threading.Thread(target=target, name=f"fleetune-job-{process.pid}", daemon=True).start()
        if command.watched:
            sign = functools.partial(processor_time_ns, process.pid)
            watch.follow(str(process.pid), sign, self._ended.wait, self._end_silent)
        self._send(command.first_line)

    def __repr__(self) -> str:
        return f"<{self._name} as process {self.pid}>"

    @property
    def pid(self) -> int:
        """Id of the child, of its process group and of its session."""
        return self._process.pid

    def lines(self) -> Iterator[str]:
        """Lines of stdout as they come; they are buffered, so a child never waits for its reader."""
        while (line := self._lines.get()) is not None:
            yield line
        self._lines.put(None)  # a second iteration ends at once

    def poll(self) -> int | None:
        """Exit code; None while the child runs."""
        if not self._ended.is_set():
            return None
        code = self._process.returncode
        return SILENT_CODE if self._silent and code in (None, -signal.SIGKILL) else code

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Exit code; None when the child still runs after `timeout_s`."""
        self._ended.wait(timeout_s)
        return self.poll()

    def stop(self, grace_s: float = 2.0) -> int:
        """Send SIGTERM to the group, SIGKILL after `grace_s`; returns the exit code."""
        for signal_number, timeout_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, None)):
            if not self._ended.is_set():
                with suppress(ProcessLookupError):
                    os.killpg(self.pid, signal_number)
            code = self.wait(timeout_s)
            if code is not None:
                return code
        raise AssertionError("a killed process ends")

    def tail(self, lines: int = 10) -> str:
        """The last lines of stderr."""
        with self._log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    def limit_cpu(self) -> None:
        """Does nothing: an emulated process throttles itself (`fleetune.launching.process_limits`)."""

    def collect(self, folder: Path, into: Path) -> None:
        """Does nothing: the child writes on this machine."""

    @property
    def out_of_memory(self) -> bool:
        """True if it exceeded its limit, or reports by its exit code that it was refused memory."""
        return self.poll() == OUT_OF_MEMORY_EXIT_CODE or (self._memory is not None and self._memory.exceeded)

    @property
    def used_bytes(self) -> int | None:
        """Peak memory seen; None without a limit."""
        return self._memory.used_bytes if self._memory is not None else None

    def memory_share(self) -> None:
        """None: a process beyond its limit is ended at once."""

    def _send(self, first_line: bytes) -> None:
        if self._process.stdin is None:
            return
        with suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(first_line.rstrip(b"\n") + b"\n")

    def _wait_for_end(self) -> None:
        self._process.wait_for_end()  # leaves a zombie: its group id stays taken
        if self._memory is not None:
            self._memory.end()
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.reap()
        self._ended.set()
        if self._memory is not None:
            self._memory.release()

    def _end_silent(self) -> None:
        self._silent = True
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if not self._ended.wait(AFTER_KILL_S):
            self._lines.put(None)
            self._ended.set()

    def _read_lines(self) -> None:
        with self._process.stdout as stdout:
            for line in stdout:
                self._lines.put(line.decode(errors="replace").rstrip("\r\n"))
        self._lines.put(None)


def child_command(parent: int) -> list[str]:
    """Command line, without the module, of a child that dies with process `parent` (0: with none); see child.py."""
    return [sys.executable, "-P", str(Path(__file__).with_name("child.py")), str(parent)]


def inherited_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of this process's environment that children get.

    Parts of PYTHONPATH that are empty or relative are dropped: they would stand for the working directory.
    """
    kept = {name: value for name, value in environment.items() if name not in ("PYTHONPATH", *NOT_INHERITED)}
    path = os.pathsep.join(filter(os.path.isabs, environment.get("PYTHONPATH", "").split(os.pathsep)))
    return {**kept, **({"PYTHONPATH": path} if path else {})}


def _start(command: Command, log: IO[bytes], watch: LifeWatch) -> "SpawnedChild | ForkedChild":
    """Fork the child of a command that preloads modules, start a process of its own for any other."""
    environment = {**inherited_environment(os.environ), **CHILD_ENVIRONMENT, **command.environment}
    arguments = (command.module, *command.arguments)
    if command.preloads:
        start = Start(
            arguments=arguments,
            environment=environment,
            forks=command.forks,
            warms_up=command.warms_up,
            has_input=bool(command.first_line),
        )
        if (forked := fork_child(start, command.preloads, log, _spawn_server, command.given_up, watch)) is not None:
            return forked
    stdin = subprocess.PIPE if command.first_line else subprocess.DEVNULL
    return SpawnedChild(
        _STARTER.submit(
            subprocess.Popen,
            [*child_command(os.getpid()), *arguments],
            env=environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        ).result()
    )


def _spawn_server(arguments: list[str], environment: Mapping[str, str], log: IO[bytes], inherited: int) -> int:
    """Start a fork server, which inherits one descriptor; returns its process id. Its connection waits for its end."""
    process = _STARTER.submit(
        subprocess.Popen,
        [*child_command(os.getpid()), *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
        start_new_session=True,
        pass_fds=(inherited,),
    ).result()
    process.returncode = 0  # so that Popen leaves the process alone
    return process.pid
