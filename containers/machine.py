"""This machine: its programs, processes and files, as one class that tests replace, and its kernel's traffic shaping.

Links between containers are shaped by htb classes, which hold rates, and u32 filters, which match destinations. Only
the kernel matters, because the shaping program runs in a container and speaks netlink itself. Delays need no kernel
support: the receiver holds messages back (many kernels lack netem, which could delay them).
"""

import gzip
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from containers import engine_api
from fleetune.errors import FleetuneError

__all__ = ["Machine", "REQUIRED_OPTIONS", "describe_link_shaping", "missing_modules", "print_steps"]

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


REQUIRED_OPTIONS = {"NET_SCH_HTB": "sch_htb", "NET_CLS_U32": "cls_u32"}
"""Option of the kernel's configuration -> the module that it makes."""
DELAYS = "delays are added by the receiver"


def describe_link_shaping(root: Path = Path("/")) -> tuple[bool, str]:
    """Support for limited link rates: False only where it is certainly missing, and a sentence for people."""
    missing = missing_modules(root, os.uname().release)
    if missing is None:
        return True, f"the kernel's support for limited link rates cannot be seen; {DELAYS}"
    if missing:
        return False, f"this kernel lacks {' and '.join(missing)}, so link rates cannot be limited; {DELAYS}"
    return True, f"this kernel can limit link rates; {DELAYS}"


def missing_modules(root: Path, release: str) -> tuple[str, ...] | None:
    """Modules that the kernel `release` neither has built in nor can load, judged by files under `root`.

    None where no file tells.
    """
    found = {module: _has(root, release, option, module) for option, module in REQUIRED_OPTIONS.items()}
    missing = tuple(module for module, there in found.items() if there is False)
    return None if not missing and None in found.values() else missing


def _has(root: Path, release: str, option: str, module: str) -> bool | None:
    if (root / "sys/module" / module).exists():
        return True
    listed = root / "lib/modules" / release / "modules.dep"
    if listed.is_file() and f"/{module}.ko" in listed.read_text():
        return True
    configuration = _kernel_config(root, release)
    if configuration is None:
        return False if listed.is_file() else None
    chosen = re.search(rf"^CONFIG_{option}=([ym])$", configuration, re.M)
    if chosen is None or chosen[1] == "y":
        return chosen is not None
    return False if listed.is_file() else None  # inside a container the modules of the machine are not visible


def _kernel_config(root: Path, release: str) -> str | None:
    """The options that the kernel was built with; None where they cannot be read."""
    try:
        return gzip.decompress((root / "proc/config.gz").read_bytes()).decode()
    except OSError:
        plain = root / "boot" / f"config-{release}"
        return plain.read_text() if plain.is_file() else None
