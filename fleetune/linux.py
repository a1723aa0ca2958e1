"""What the Linux kernel tells of processes: their memory and start time, and the control groups that limit them.

References: proc(5), sections on /proc/PID/stat and /proc/PID/status; Linux kernel documentation, admin-guide/cgroup-v1
and admin-guide/cgroup-v2.
"""

import ctypes
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PEAK_RESIDENT, RESIDENT, RESIDENT_FILES = "VmHWM", "VmRSS", "RssFile"
"""Fields of /proc/PID/status: peak and current resident memory, mapped files included; the mapped files alone."""


def status_bytes(field: str, process: int | str = "self") -> int:
    """A memory field of /proc/PROCESS/status in bytes; 0 if the process has ended or there is no such field."""
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return 0


def start_ticks(pid: int) -> str:
    """Start time of a process in clock ticks since boot; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def process_identity(pid: int) -> str:
    """Boot, id and start time of a process: ids are given again, after a reboot from the start. Empty where there is no
    such process."""
    ticks = start_ticks(pid)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{pid}/{ticks}" if ticks else ""


def resident_bytes() -> int:
    """Return the current resident size of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def library_bytes() -> int:
    """Return the resident bytes of this process's shared libraries that are as on disk; 0 where the kernel does not
    tell."""
    total, counts = 0, False
    try:
        lines = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return 0
    for line in lines:
        name, *rest = line.split()
        if not name.endswith(":"):  # a mapping: addresses, rights, offset, device, inode, path
            counts = len(rest) > 4 and ".so" in Path(rest[4]).name
        elif counts and name in ("Rss:", "Anonymous:"):
            total += int(rest[0]) * 1024 * (1 if name == "Rss:" else -1)
    return total


def trim_heap() -> None:
    """Return the C library's free memory to the kernel."""
    with suppress(OSError, AttributeError):  # other C libraries have no malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


MEMBERSHIP, MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
UNLIMITED_BYTES = 1 << 60
"""Version 1 writes a huge number where there is no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup:
    """A group that this process is in."""

    controller: str
    """`cpu` or `memory` (version 1), or empty: the one hierarchy of version 2."""
    folder: Path
    root: Path
    """Mount of the controller, at or above `folder`."""

    @property
    def lineage(self) -> Iterator[Path]:
        """The folder and its parents up to the root; inside a container the folder itself may not be visible."""
        return (path for path in (self.folder, *self.folder.parents) if path == self.root or self.root in path.parents)


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLimits:
    """The tightest limits from the process's groups up to their roots; None where there is none."""

    cores: float | None
    memory_bytes: int | None


def own_cgroups(membership: Path = MEMBERSHIP, mount: Path = MOUNT) -> tuple[Cgroup, ...]:
    """Groups of the process that `membership` belongs to (a /proc/PID/cgroup); empty on a machine without cgroups."""
    found = []
    for line in read_text(membership).splitlines():
        _, controllers, group = (*line.split(":", 2), "", "")[:3]
        for controller in controllers.split(","):
            if controller in ("", "cpu", "memory"):
                root = mount / controller
                found.append(Cgroup(controller=controller, folder=root / group.lstrip("/"), root=root))
    return tuple(found)


def cgroup_limits(membership: Path = MEMBERSHIP, mount: Path = MOUNT) -> CgroupLimits:
    """The limits of processor time and memory that bind the process that `membership` belongs to."""
    cores, memory = [], []
    for folder in (folder for cgroup in own_cgroups(membership, mount) for folder in cgroup.lineage):
        for name in ("memory.max", "memory.limit_in_bytes"):
            words = read_text(folder / name).split()
            if words and words[0].isdigit() and 0 < int(words[0]) < UNLIMITED_BYTES:
                memory.append(int(words[0]))
        quota = read_text(folder / "cpu.max").split() or [
            *read_text(folder / "cpu.cfs_quota_us").split(),
            *read_text(folder / "cpu.cfs_period_us").split(),
        ]
        if len(quota) == 2 and all(word.isdigit() for word in quota) and int(quota[1]) > 0 and int(quota[0]) > 0:
            cores.append(int(quota[0]) / int(quota[1]))
    return CgroupLimits(cores=min(cores, default=None), memory_bytes=min(memory, default=None))


def free_bytes(membership: Path = MEMBERSHIP, mount: Path = MOUNT) -> int | None:
    """Memory that the tightest limit of version 2 leaves this process; None where no limit binds it."""
    left = []
    for folder in (folder for cgroup in own_cgroups(membership, mount) for folder in cgroup.lineage):
        limit, used = (read_text(folder / name).strip() for name in ("memory.max", "memory.current"))
        if limit.isdigit() and used.isdigit():
            left.append(max(0, int(limit) - int(used)))
    return min(left, default=None)


def read_text(path: Path) -> str:
    """Content of a file of the kernel; empty where it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
