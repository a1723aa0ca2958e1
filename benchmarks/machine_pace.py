"""How fast this machine computes meanwhile: a machine that others share is some percent faster or slower each minute.

A thread takes the processor time of the same small matrix product twenty times a second, two percent of a core. Beside
what is measured at two times it tells how much of a difference is the machine's.
"""

import statistics
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

import torch

EVERY_S = 0.05
ROWS, COLUMNS = 128, 384
"""A micro-batch of tokens times a weight of MiniLM: what the trainings beside it compute."""


class Sample(NamedTuple):
    """One product."""

    at_s: float
    """Of `time.monotonic`."""
    taken_s: float
    """Processor seconds."""


class MachinePace:
    """Takes samples from `with` on, until its end."""

    def __init__(self, work: Callable[[], object] | None = None) -> None:
        """work: other than the product, for tests."""
        left, right = torch.ones(ROWS, COLUMNS), torch.ones(COLUMNS, COLUMNS)
        self._work = work or (lambda: left @ right)
        self._samples: list[Sample] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pace", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def add(self, sample: Sample) -> None:
        """Take in a sample."""
        self._samples.append(sample)

    def ratio(self, before: tuple[float, float], after: tuple[float, float]) -> float | None:
        """Return how many times as long the product took in the second span as in the first, by medians; None where one
        of them has no sample. Spans are start and end by `time.monotonic`."""
        first, second = (self._taken_s(*span) for span in (before, after))
        return statistics.median(second) / statistics.median(first) if first and second else None

    def _taken_s(self, start_s: float, end_s: float) -> list[float]:
        return [each.taken_s for each in self._samples if start_s <= each.at_s <= end_s]

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            at_s, start_s = time.monotonic(), time.thread_time()
            self._work()
            self.add(Sample(at_s, time.thread_time() - start_s))
