"""Memory and start times that the kernel reports of processes."""

import os
import subprocess

import psutil
import pytest

from fleetune.linux import PEAK_RESIDENT, RESIDENT, start_ticks, status_bytes


def test_memory_of_this_process() -> None:
    """Resident memory agrees with psutil, and the peak is at least as high; both spellings of the process agree."""
    resident = status_bytes(RESIDENT)
    assert resident == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    assert status_bytes(PEAK_RESIDENT) >= resident
    assert status_bytes(PEAK_RESIDENT, os.getpid()) == status_bytes(PEAK_RESIDENT)


def test_a_process_that_has_ended() -> None:
    """An ended process has no memory and no start time, and an unknown field reads 0."""
    process = subprocess.Popen(["true"])
    process.wait()
    assert status_bytes(PEAK_RESIDENT, process.pid) == 0
    assert start_ticks(process.pid) == ""
    assert status_bytes("NoSuchField") == 0
    assert int(start_ticks(os.getpid())) > 0
