"""Control groups (version 1 and 2) of this process: where they lie, and which limits bind it.

References: Linux kernel documentation, admin-guide/cgroup-v1 and admin-guide/cgroup-v2.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
