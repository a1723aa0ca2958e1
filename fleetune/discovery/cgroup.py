"""What a container or a service unit may use of its machine (control groups, version 1 and 2)."""

from collections.abc import Iterator
from pathlib import Path

from fleetune.contracts.record import record

UNLIMITED_BYTES = 1 << 60


@record
class CgroupLimits:
    """The tightest limits on the way from the process's group up to the root; None where there is none."""

    cores: float | None
    memory_bytes: int | None


def cgroup_limits(membership: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> CgroupLimits:
    """Read the limits of the process that `membership` belongs to; a machine without cgroups has none."""
    cores, memory = [], []
    for folder in _folders(membership, mount):
        for name in ("memory.max", "memory.limit_in_bytes"):
            words = _words(folder / name)
            if words and words[0].isdigit() and 0 < int(words[0]) < UNLIMITED_BYTES:
                memory.append(int(words[0]))
        quota = _words(folder / "cpu.max") or [
            *_words(folder / "cpu.cfs_quota_us"),
            *_words(folder / "cpu.cfs_period_us"),
        ]
        if len(quota) == 2 and all(word.isdigit() for word in quota) and int(quota[1]) > 0 and int(quota[0]) > 0:
            cores.append(int(quota[0]) / int(quota[1]))
    return CgroupLimits(cores=min(cores, default=None), memory_bytes=min(memory, default=None))


def _folders(membership: Path, mount: Path) -> Iterator[Path]:
    """Every group the process is in, each with its parents up to the mount of its controller."""
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


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
