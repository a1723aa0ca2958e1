"""Measures processes: wall and CPU time of turns (one runs while the others are stopped), and peak memory."""

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from fleetune.linux import PEAK_RESIDENT, RESIDENT, status_bytes


@dataclass(frozen=True)
class Turn:
    """Duration of one turn of a process."""

    wall_s: float
    cpu_s: float
    """CPU time of all threads of the process."""


class Stopwatch:
    """Resumes and stops one process and measures its turns."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._process = psutil.Process(pid)
        self._began: tuple[float, float] | None = None

    def go(self) -> None:
        """Resume the process and start measuring."""
        self._began = time.perf_counter(), self._cpu_s()
        os.kill(self._pid, signal.SIGCONT)

    def stop(self) -> Turn | None:
        """Stop the process; returns its turn, or None if `go` was not called before."""
        os.kill(self._pid, signal.SIGSTOP)
        if self._began is None:
            return None
        wall_s, cpu_s = self._began
        self._began = None
        return Turn(time.perf_counter() - wall_s, self._cpu_s() - cpu_s)

    @contextmanager
    def turn(self, turns: list[Turn]) -> Iterator[None]:
        """Run the process for the duration of the block and append its turn."""
        self.go()
        try:
            yield
        finally:
            done = self.stop()
            if done is not None:
                turns.append(done)

    def _cpu_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


@dataclass(frozen=True)
class ResourceUsage:
    """CPU time and peak memory of one piece of work."""

    cpu_s: float
    """CPU time of all threads."""
    peak_bytes: int
    """Peak resident memory above the resident memory at the start."""


class UsageMeter:
    """Measures this process from the creation of the meter on."""

    def __init__(self) -> None:
        ctypes.CDLL(None).malloc_trim(0)  # memory cached by the allocator would hide new allocations
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the recorded peak
        self._before_bytes = status_bytes(RESIDENT)
        self._before_s = time.process_time()

    def read(self) -> ResourceUsage:
        """CPU time and peak memory since the meter was created."""
        return ResourceUsage(time.process_time() - self._before_s, status_bytes(PEAK_RESIDENT) - self._before_bytes)
