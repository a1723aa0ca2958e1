"""Memory and start times that the kernel reports of processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fleetune.linux import PEAK_RESIDENT, RESIDENT, start_ticks, status_bytes


def test_memory_of_this_process() -> None:
    """Resident memory agrees with psutil, and the peak is at least as high; both spellings of the process agree."""
    resident = status_bytes(RESIDENT)
    assert resident == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    assert status_bytes(PEAK_RESIDENT) >= resident
    assert status_bytes(PEAK_RESIDENT, os.getpid()) == status_bytes(PEAK_RESIDENT)


MAPPED = """
import mmap, sys
from fleetune.linux import RESIDENT_FILES, library_bytes, status_bytes
found = [status_bytes(RESIDENT_FILES), library_bytes()]
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
    assert mapped.find(b"x") == -1, "every page is read"
    print(found + [status_bytes(RESIDENT_FILES), library_bytes()])
"""
"""A process of its own: of the many libraries of this one, the kernel may let pages go meanwhile."""


def test_libraries_are_counted_and_data_that_are_mapped_are_not(tmp_path: Path) -> None:
    """A file of 16 MB that is mapped and read adds to the files of a process, and not to its libraries."""
    path = tmp_path / "data"
    path.write_bytes(bytes(16 << 20))
    told = subprocess.run([sys.executable, "-c", MAPPED, str(path)], capture_output=True, check=True)
    files, libraries, more_files, more_libraries = json.loads(told.stdout)
    assert 1 << 20 < libraries <= files
    assert more_files - files > 15 << 20 and abs(more_libraries - libraries) < 4 << 20


def test_a_process_that_has_ended() -> None:
    """An ended process has no memory and no start time, and an unknown field reads 0."""
    process = subprocess.Popen(["true"])
    process.wait()
    assert status_bytes(PEAK_RESIDENT, process.pid) == 0
    assert start_ticks(process.pid) == ""
    assert status_bytes("NoSuchField") == 0
    assert int(start_ticks(os.getpid())) > 0
