"""Errors of full disks."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetune import filesystem
from fleetune.contracts import json_io
from fleetune.contracts.fleet import Device, Fleet
from fleetune.errors import TryAgain

SAID = [
    OSError(errno.ENOSPC, "No space left on device"),
    RuntimeError("I/O error: No space left on device (os error 28)"),  # safetensors
    RuntimeError("(sqlite3.OperationalError) database or disk is full"),
    ExceptionGroup("tasks", [ValueError("a"), OSError(errno.ENOSPC, "No space left on device")]),
]


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders on separate disks: `small` has 3 kB free of 64 kB, `large` 5 GB of 10 GB, `locked` is read-only."""
    facts = {"small": (3, 64, 0), "large": (5_000_000, 10_000_000, 0), "locked": (5_000_000, 10_000_000, os.ST_RDONLY)}

    def statvfs(path: str | Path) -> Any:
        name = Path(path).relative_to(tmp_path).parts[0]
        free, size, flag = facts[name]
        return SimpleNamespace(f_bavail=free, f_blocks=size, f_frsize=1000, f_files=9, f_favail=9, f_flag=flag)

    for name in facts:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path).parent == tmp_path or path == Path("/"))
    return tmp_path


@pytest.mark.parametrize("error", SAID, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("small", [filesystem.STORE, filesystem.TEMPORARY])
def test_the_disk_that_is_full_is_named(disks: Path, error: Exception, small: str) -> None:
    """A full disk was once an unforeseen OSError without a path: the error names the full disk among those in use, its
    free space and a remedy."""
    used = {
        purpose: disks / ("small" if purpose == small else "large")
        for purpose in (filesystem.STORE, filesystem.TEMPORARY)
    }
    found = filesystem.disk_error(error, used)
    assert isinstance(found, TryAgain)
    assert str(found).startswith(
        f"the disk of {disks / 'small'} (mounted at {disks / 'small'}, 3 kB free of 64 kB) has no room for this: "
    )
    assert ("--root" if small == filesystem.STORE else "TMPDIR") in str(found)


def test_the_cause_of_an_error_counts(disks: Path) -> None:
    """A library's own error is traced to the full disk that caused it."""
    error = ValueError("cannot save")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device", str(disks / "small" / "weights"))
    assert str(disks / "small") in str(filesystem.disk_error(error, {filesystem.STORE: disks / "large"}))


def test_what_was_half_written_may_be_gone(disks: Path) -> None:
    """The disk that an error names is reported even if it has space again."""
    error = OSError(errno.ENOSPC, "No space left on device", str(disks / "large" / "x.part"))
    assert "5 GB free of 10 GB" in str(filesystem.disk_error(error, {filesystem.TEMPORARY: disks / "large"}))


@pytest.mark.parametrize(
    ("number", "place", "said"),
    [(errno.EROFS, "locked", "is read-only: make room"), (errno.EDQUOT, "large", "no more room (quota)")],
)
def test_other_reasons_to_take_nothing(disks: Path, number: int, place: str, said: str) -> None:
    """Read-only disks and exceeded quotas are reported as such."""
    used = {filesystem.TEMPORARY: disks / "large", filesystem.STORE: disks / place}
    assert said.partition(":")[0] in str(filesystem.disk_error(OSError(number, os.strerror(number)), used))


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "Permission denied"), KeyError("device"), OSError("space")])
def test_other_errors_are_none_of_a_disk(disks: Path, error: Exception) -> None:
    """Other errors are not blamed on a disk, even while one is full."""
    assert filesystem.disk_error(error, {filesystem.STORE: disks / "small"}) is None


def test_a_record_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed write once left its partial file behind."""
    fleet = Fleet(devices=(Device(name="a", memory_bytes=1, cores=1, fingerprint="f"),))

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        json_io.write(fleet, tmp_path / "fleet.json")
    assert not list(tmp_path.iterdir())
