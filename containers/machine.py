"""Programs, processes, files and time of this machine, as one class that tests replace; output of the make targets."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from containers import engine_api
from fleetune.errors import FleetuneError

__all__ = ["Machine", "print_steps"]

SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
"""Folders that the search path of a user often lacks."""


class Machine:
    """The machine this process runs on."""

    def find_engine(self) -> engine_api.EngineInfo | None:
        """The engine that answers here; None where none does."""
        try:
            return engine_api.find_engine()
        except engine_api.EngineUnavailable:
            return None

    def is_root(self) -> bool:
        """True for a process that may install programs."""
        return os.geteuid() == 0

    def has(self, program: str) -> bool:
        """True where the program is installed."""
        return shutil.which(program, path=_path()) is not None

    def call(self, *command: str) -> int:
        """Run a program to its end; returns its exit code."""
        environment = {**os.environ, "PATH": _path(), "DEBIAN_FRONTEND": "noninteractive"}
        return subprocess.run(command, env=environment, check=False).returncode

    def spawn(self, command: Sequence[str], log: Path) -> Callable[[], int | None]:
        """Start a program that outlives this one; returns its `poll` (exit code, None while it runs)."""
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "PATH": _path()}
        with log.open("ab") as output:
            return subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            ).poll

    def running_process(self, pid_file: Path, expected: str) -> int | None:
        """Process id in `pid_file` if that process runs and its command line contains `expected`.

        The check of the command line is needed because process ids are reused.
        """
        try:
            pid = int(pid_file.read_text())
            return pid if expected.encode() in Path(f"/proc/{pid}/cmdline").read_bytes() else None
        except (OSError, ValueError):
            return None

    def remove(self, file: Path) -> bool:
        """Remove a file; returns True if it existed."""
        existed = file.exists()
        file.unlink(missing_ok=True)
        return existed

    def terminate(self, pid: int, timeout_s: float) -> bool:
        """Send SIGTERM and wait; returns True if the process has ended within `timeout_s`."""
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not _is_running(pid):
                return True
            self.sleep(0.1)
        return False

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


def print_steps(work: Callable[[], Iterator[str]]) -> int:
    """Print the sentences that `work` yields as they come, and its error to stderr; returns the exit code."""
    try:
        for sentence in work():
            sys.stdout.write(f"{sentence}\n")
            sys.stdout.flush()
    except FleetuneError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _is_running(pid: int) -> bool:
    """True if the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _path(environment: Mapping[str, str] = os.environ) -> str:
    return f"{environment.get('PATH', '/usr/bin:/bin')}:{SYSTEM_PATH}"
