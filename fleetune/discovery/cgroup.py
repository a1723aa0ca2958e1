"""Control groups: the limits of cores and memory of a container or service unit (cgroup version 1 and 2)."""

from collections.abc import Iterator
from pathlib import Path

from fleetune.contracts.record import record

UNLIMITED_BYTES = 1 << 60


@record
class CgroupLimits:
    """Tightest limits of a process's cgroup and its parents; None: unlimited."""

    cores: float | None
    memory_bytes: int | None


def cgroup_limits(membership: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> CgroupLimits:
    """Read the limits (cgroup version 1 or 2) of the process with this `membership` file; no limits without cgroups."""
    cores, memory = [], []
    for folder in _cgroup_folders(membership, mount):
        for name in ("memory.max", "memory.limit_in_bytes"):
            words = _read_words(folder / name)
            if words and words[0].isdigit() and 0 < int(words[0]) < UNLIMITED_BYTES:
                memory.append(int(words[0]))
        quota = _read_words(folder / "cpu.max") or [
            *_read_words(folder / "cpu.cfs_quota_us"),
            *_read_words(folder / "cpu.cfs_period_us"),
        ]
        if len(quota) == 2 and all(word.isdigit() for word in quota) and int(quota[1]) > 0 and int(quota[0]) > 0:
            cores.append(int(quota[0]) / int(quota[1]))
    return CgroupLimits(cores=min(cores, default=None), memory_bytes=min(memory, default=None))


def _cgroup_folders(membership: Path, mount: Path) -> Iterator[Path]:
    """Yield every cgroup of the process, each with its parents up to the mount point of its controller."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = (*line.split(":", 2), "", "")[:3]
        for controller in controllers.split(","):
            if controller not in ("", "cpu", "memory"):
                continue
            top = mount / controller
            inner = top / group.lstrip("/")
            yield from (folder for folder in (inner, *inner.parents) if folder == top or top in folder.parents)


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
