"""Processes that take turns: while one works the others are stopped, so that all see the same machine."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Turn:
    """What one turn took."""

    wall_s: float
    cpu_s: float
    """Of all threads of the process."""


class Stopwatch:
    """Lets one process run and says what its turns took."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._process = psutil.Process(pid)
        self._began: tuple[float, float] | None = None

    def go(self) -> None:
        """Let it run from now on."""
        self._began = time.perf_counter(), self._cpu_s()
        os.kill(self._pid, signal.SIGCONT)

    def stop(self) -> Turn | None:
        """Hold it where it stands; None at the end of a turn whose beginning was not seen."""
        os.kill(self._pid, signal.SIGSTOP)
        if self._began is None:
            return None
        wall_s, cpu_s = self._began
        self._began = None
        return Turn(time.perf_counter() - wall_s, self._cpu_s() - cpu_s)

    @contextmanager
    def turn(self, turns: list[Turn]) -> Iterator[None]:
        """Run while the block runs."""
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
