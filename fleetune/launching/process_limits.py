"""Limits of processes that emulate smaller devices: CPU, and memory where no container limits it."""

import math
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fleetune.linux import MEMBERSHIP, MOUNT, PEAK_RESIDENT, own_cgroups, read_text, status_bytes

OUT_OF_MEMORY_EXIT_CODE = 128 + signal.SIGKILL
"""Exit code of a process that was refused memory: the one that an engine gives a container without any left."""
POLL_S = 0.02
REMOVE_ATTEMPTS = 50
RESERVED_BYTES = 1 << 30
"""Address space that a process may have beyond its memory: stacks and buffers that it never touches."""
FOLLOWS_S, MOST_LATE_S = 0.001, 0.01
"""Work that begins so soon after other work follows it, and makes up for so much at most: a period of a CPU quota."""
ALLOCATION_ERRORS = (
    "can't allocate memory",
    "Cannot allocate memory",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "unable to find an engine to execute this computation",
)
"""What errors say where memory is lacking; the last three of a GPU's libraries, which have no room for their own."""
CGROUP_PREFIX = "fleetune-"


@dataclass(slots=True)
class CpuThrottle:
    """A quota of processor time: work that took c CPU seconds lasts at least c / cores. `cores` None: no quota.

    Durations then depend on CPU time alone, so they stay the same while other emulated devices share the machine. In a
    container, whose engine holds it to the same quota, that keeps the pace even: a quota is granted anew every period,
    also to a device that waits, which would then compute its first milliseconds at the full speed of the machine, as no
    slow device does (22 ms faster at a quarter of a core, once per message that it waited for). Only the CPU time of
    the calling thread counts: a quota below one core goes with a single thread, and a device never has more threads
    than cores, so that several threads cannot exceed their quota.

    Work that follows other work at once makes up for what that lasted too long: an engine holds a container back for
    whole ticks of the kernel's clock, which otherwise would be added to the next work's pace.
    """

    cores: float | None = None
    clock_s: Callable[[], float] = time.monotonic
    cpu_s: Callable[[], float] = time.thread_time
    sleep: Callable[[float], None] = time.sleep
    _ended_s: float = -math.inf
    """When the newest work ended."""
    _late_s: float = 0.0
    """By how much it lasted too long."""

    @contextmanager
    def throttled(self) -> Iterator[None]:
        """Run work of the calling thread, then sleep for as long as the quota demands."""
        start_s, cpu_start_s = self.clock_s(), self.cpu_s()
        yield
        if self.cores is None:
            return
        follows = start_s - self._ended_s <= FOLLOWS_S
        due_s = start_s - (self._late_s if follows else 0.0) + (self.cpu_s() - cpu_start_s) / self.cores
        rest_s = due_s - self.clock_s()
        if rest_s > 0:
            self.sleep(rest_s)
        self._ended_s = self.clock_s()
        self._late_s = min(MOST_LATE_S, max(0.0, self._ended_s - due_s))


class MemoryWatchdog:
    """Kills a process, with its process group, once it has held more memory than its limit.

    Where control groups can be made, the kernel kills at the allocation that exceeds the limit. Everywhere a thread
    polls resident memory, mapped files included. An allocation of more than RESERVED_BYTES beyond the limit is refused
    to the process, which bounds what it can take between two polls.
    """

    def __init__(self, pid: int, limit_bytes: int) -> None:
        self.exceeded = False
        self.used_bytes = 0
        """Peak memory seen."""
        self._pid, self._limit_bytes = pid, limit_bytes
        self._ended = threading.Event()
        self._group = limit_memory(pid, limit_bytes)
        with suppress(OSError, ValueError):  # the process has ended; its exit code says why
            bound = limit_bytes + RESERVED_BYTES
            resource.prlimit(pid, resource.RLIMIT_DATA, (bound, bound))
        self._thread = threading.Thread(target=self._run, name=f"fleetune-memory-{pid}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop polling, because the process has ended and its id may soon be reused."""
        self._ended.set()
        self._thread.join()
        if self._group is not None and self._group.oom_killed:
            self.exceeded = True
            self.used_bytes = max(self.used_bytes, self._group.peak_bytes)

    def release(self) -> None:
        """Remove the control group after all its processes have been told to end."""
        for _ in range(REMOVE_ATTEMPTS):
            if self._group is None or self._group.remove():
                return
            time.sleep(POLL_S)

    def _run(self) -> None:
        while not self._ended.wait(POLL_S):
            self.used_bytes = max(self.used_bytes, status_bytes(PEAK_RESIDENT, self._pid))
            if self.used_bytes > self._limit_bytes:
                self.exceeded = True
                with suppress(ProcessLookupError):
                    os.killpg(self._pid, signal.SIGKILL)
                return


def is_out_of_memory(error: BaseException) -> bool:
    """True for errors by which Python, NumPy or torch report that the kernel, or a GPU, refused more memory."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in ALLOCATION_ERRORS)


@dataclass(frozen=True, slots=True)
class _CgroupFiles:
    """File names of the memory controller."""

    limit: str
    swap_limit: tuple[str, str]
    """File and value; version 1 limits memory and swap together, to the same value as memory (empty here)."""
    events: str
    peak: str


V1 = _CgroupFiles(
    "memory.limit_in_bytes", ("memory.memsw.limit_in_bytes", ""), "memory.oom_control", "memory.max_usage_in_bytes"
)
V2 = _CgroupFiles("memory.max", ("memory.swap.max", "0"), "memory.events", "memory.peak")


class MemoryCgroup:
    """A memory control group for one child process; `limit_memory` makes it, `remove` removes it."""

    def __init__(self, folder: Path, files: _CgroupFiles) -> None:
        self._folder, self._files = folder, files

    @property
    def oom_killed(self) -> bool:
        """True if the kernel killed a process of the group at the limit."""
        for line in read_text(self._folder / self._files.events).splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.strip() not in ("", "0"):
                return True
        return False

    @property
    def peak_bytes(self) -> int:
        """Peak memory charged to the group; 0 where the kernel does not count it."""
        text = read_text(self._folder / self._files.peak).strip()
        return int(text) if text.isdigit() else 0

    def remove(self) -> bool:
        """Try to remove the group; returns False while a process of it lives."""
        try:
            self._folder.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def limit_memory(pid: int, limit_bytes: int, membership: Path = MEMBERSHIP, mount: Path = MOUNT) -> MemoryCgroup | None:
    """Put a process into a new control group with a limit; None where this process may not make groups.

    The kernel enforces the limit at every allocation, and on everything the process starts. Version 2 allows this only
    below a group that enables the memory controller for its children, as delegated groups do. The kernel rounds limits
    down to pages; they are rounded up here, so that the process does not find less than it was given.
    """
    limit_bytes = math.ceil(limit_bytes / resource.getpagesize()) * resource.getpagesize()
    found = _writable_parent(membership, mount)
    if found is None:
        return None
    parent, files = found
    _remove_orphans(parent)
    folder = parent / f"{CGROUP_PREFIX}{os.getpid()}-{pid}"
    group = MemoryCgroup(folder, files)
    try:
        folder.mkdir()
        (folder / files.limit).write_text(str(limit_bytes))
        name, value = files.swap_limit
        with suppress(OSError):  # a kernel that counts no swap has no such file
            if (folder / name).exists():
                (folder / name).write_text(value or str(limit_bytes))
        (folder / "cgroup.procs").write_text(str(pid))
    except OSError:
        group.remove()
        return None
    return group


def _writable_parent(membership: Path, mount: Path) -> tuple[Path, _CgroupFiles] | None:
    """This process's own memory group, if groups below it can be made and limited; version 1 comes first."""
    groups = {cgroup.controller: cgroup.folder for cgroup in reversed(own_cgroups(membership, mount))}
    if "memory" in groups:
        return (groups["memory"], V1) if _is_writable(groups["memory"]) else None
    if "" in groups:
        delegated = "memory" in read_text(groups[""] / "cgroup.subtree_control").split()
        return (groups[""], V2) if delegated and _is_writable(groups[""]) else None
    return None


def _is_writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK)


def _remove_orphans(parent: Path) -> None:
    """Remove groups whose maker was killed; a group that holds a process cannot be removed."""
    for folder in parent.glob(f"{CGROUP_PREFIX}*"):
        maker = folder.name.removeprefix(CGROUP_PREFIX).partition("-")[0]
        if maker.isdigit() and not Path(f"/proc/{maker}").exists():
            with suppress(OSError):
                folder.rmdir()
