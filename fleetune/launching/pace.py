"""Holds a computation below its machine's speed: uneven devices can be emulated on one machine without an engine."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """A quota of CPU: work that took c CPU seconds lasts at least c / cores. `cores` None: no quota.

    Durations then depend on CPU time alone, so they stay what they are while other emulated devices share the machine.
    CPU time is that of the thread that computes. A quota that holds it back is below one core, where it is the only
    one: a device never has more threads than cores, so several can not use more than their quota.
    """

    cores: float | None = None
    clock_s: Callable[[], float] = time.monotonic
    cpu_s: Callable[[], float] = time.thread_time
    sleep: Callable[[float], None] = time.sleep

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Run a piece of work of the calling thread at this pace."""
        start_s, cpu_start_s = self.clock_s(), self.cpu_s()
        yield
        if self.cores is not None:
            ends_s = start_s + (self.cpu_s() - cpu_start_s) / self.cores
            rest_s = ends_s - self.clock_s()
            if rest_s > 0:
                self.sleep(rest_s)
