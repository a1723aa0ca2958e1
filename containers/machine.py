"""This machine as engine.py sees it: programs, processes and time, in one place that a test can stand in for."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from containers import answers

__all__ = ["Machine"]

SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
"""Folders that a user's own search path often lacks."""


class Machine:
    """The real one."""

    def answer(self) -> answers.Answer | None:
        """The engine that answers here, if one does."""
        try:
            return answers.find()
        except answers.NoAnswer:
            return None

    def is_root(self) -> bool:
        """Whether programs may be installed."""
        return os.geteuid() == 0

    def has(self, program: str) -> bool:
        """Whether a program is installed."""
        return shutil.which(program, path=_path()) is not None

    def call(self, *command: str) -> int:
        """Run a program to its end; its exit code."""
        environment = {**os.environ, "PATH": _path(), "DEBIAN_FRONTEND": "noninteractive"}
        return subprocess.run(command, env=environment, check=False).returncode

    def spawn(self, command: Sequence[str], log: Path) -> Callable[[], int | None]:
        """Start a program that outlives this one; what asks for its exit code (None while it runs)."""
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "PATH": _path()}
        with log.open("ab") as output:
            return subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            ).poll

    def process(self, pid_file: Path, must_say: str) -> int | None:
        """The process named in `pid_file`, if it runs and its command line says `must_say`: numbers are used again."""
        try:
            number = int(pid_file.read_text())
            return number if must_say.encode() in Path(f"/proc/{number}/cmdline").read_bytes() else None
        except (OSError, ValueError):
            return None

    def forget(self, file: Path) -> bool:
        """Remove a file; whether it was there."""
        there = file.exists()
        file.unlink(missing_ok=True)
        return there

    def end(self, pid: int, patience_s: float) -> bool:
        """Ask a process to end; whether it has within `patience_s`."""
        os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            if not _runs(pid):
                return True
            self.wait(0.1)
        return False

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)


def _runs(pid: int) -> bool:
    """Whether a process is there, and more than a zombie that nobody has asked for its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _path(environment: Mapping[str, str] = os.environ) -> str:
    return f"{environment.get('PATH', '/usr/bin:/bin')}:{SYSTEM_PATH}"
