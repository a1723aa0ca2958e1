"""A memory control group (version 1 or 2) for one child process, where this process may make groups below its own.

The kernel enforces it at every allocation and counts what the child itself starts. In version 2 that needs a parent
group that has the memory controller enabled for its children, which is the case where a group was delegated.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MEMBERSHIP, MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
PREFIX = "fleetune-"


@dataclass(frozen=True, slots=True)
class _Files:
    """Names of what a version of control groups keeps in a folder."""

    limit: str
    limit_with_swap: tuple[str, str]
    """File and value; the value of version 1 is the limit itself."""
    events: str
    peak: str


V1 = _Files(
    "memory.limit_in_bytes", ("memory.memsw.limit_in_bytes", ""), "memory.oom_control", "memory.max_usage_in_bytes"
)
V2 = _Files("memory.max", ("memory.swap.max", "0"), "memory.events", "memory.peak")


class MemoryCgroup:
    """A group of its own for process `pid`; made by `bind`, gone after `remove`."""

    def __init__(self, folder: Path, files: _Files) -> None:
        self._folder, self._files = folder, files

    @property
    def oom_killed(self) -> bool:
        """Whether the kernel ended a process of the group because it needed more than the limit."""
        for line in _text(self._folder / self._files.events).splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.strip() not in ("", "0"):
                return True
        return False

    @property
    def peak_bytes(self) -> int:
        """Most memory that was charged to the group; 0 where the kernel does not tell."""
        text = _text(self._folder / self._files.peak).strip()
        return int(text) if text.isdigit() else 0

    def remove(self) -> bool:
        """Remove the group; whether it is gone. It stays as long as a process of it lives."""
        try:
            self._folder.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def bind(pid: int, limit_bytes: int, membership: Path = MEMBERSHIP, mount: Path = MOUNT) -> MemoryCgroup | None:
    """Put a process that has just been started into a group with this limit; None where no group can be made."""
    found = _parent(membership, mount)
    if found is None:
        return None
    parent, files = found
    _sweep(parent)
    folder = parent / f"{PREFIX}{os.getpid()}-{pid}"
    group = MemoryCgroup(folder, files)
    try:
        folder.mkdir()
        (folder / files.limit).write_text(str(limit_bytes))
        name, value = files.limit_with_swap
        with suppress(OSError):  # a kernel that counts no swap has no such file
            if (folder / name).exists():
                (folder / name).write_text(value or str(limit_bytes))
        (folder / "cgroup.procs").write_text(str(pid))
    except OSError:
        group.remove()
        return None
    return group


def _parent(membership: Path, mount: Path) -> tuple[Path, _Files] | None:
    """The folder of this process's own group in the memory controller, if children of it would have that, too."""
    for line in _text(membership).splitlines():
        _, controllers, group = (*line.split(":", 2), "", "")[:3]
        if "memory" in controllers.split(","):
            folder = mount / "memory" / group.lstrip("/")
            return (folder, V1) if _may_make(folder) else None
    for line in _text(membership).splitlines():
        if line.startswith("0::"):
            folder = mount / line[3:].lstrip("/")
            delegated = "memory" in _text(folder / "cgroup.subtree_control").split()
            return (folder, V2) if delegated and _may_make(folder) else None
    return None


def _may_make(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK)


def _sweep(parent: Path) -> None:
    """Remove groups whose maker was killed; groups that hold a process cannot be removed."""
    for folder in parent.glob(f"{PREFIX}*"):
        maker = folder.name.removeprefix(PREFIX).partition("-")[0]
        if maker.isdigit() and not Path(f"/proc/{maker}").exists():
            with suppress(OSError):
                folder.rmdir()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
