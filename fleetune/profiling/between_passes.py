"""Times what passes through units do not show: the optimizer step, and a message's wait.

A message wakes a thread at each end. Links are measured between devices that do nothing else, but in a round other
devices of the same machine compute, so that a thread that was woken waits until their turn ends. The wait is measured
after passes, while all devices are being profiled: the mean beyond the least that was seen.
"""

import os
import queue
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch
from torch import nn

from fleetune.profiling.timing import TimingSettings, elapsed_s, read_clock

MOST_ELEMENTS = 1 << 21
"""Elements of a tensor that take part in the measurement; the time of a larger one is in proportion."""
UPDATES = 3
Shapes = tuple[int, ...]
"""Elements of each trained tensor of a unit."""


class MessageWait:
    """Wakes a thread as a message does, and measures how late it runs."""

    def __init__(self, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self._clock_s = clock_s
        self._waits_s: list[float] = []
        self._answers: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._reader, self._writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name="message-wait", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._writer)
        self._thread.join()
        os.close(self._reader)

    def measure(self) -> None:
        """Wake the thread once."""
        start_s = self._clock_s()
        os.write(self._writer, b"!")
        self._waits_s.append(self._answers.get() - start_s)

    @property
    def mean_s(self) -> float:
        """Mean wait beyond the least one; 0 before the first."""
        return statistics.fmean(self._waits_s) - min(self._waits_s) if self._waits_s else 0.0

    def _run(self) -> None:
        while os.read(self._reader, 1):
            self._answers.put(self._clock_s())


def update_times(
    units: Sequence[Shapes],
    optimizer: str,
    momentum: float,
    like: torch.Tensor,
    settings: TimingSettings,
    half: torch.dtype | None = None,
) -> list[float]:
    """Return the seconds of an optimizer step, and of the norms of its gradients, of each unit.

    like: an element of the parameters' device and type. half: the type of the copies that are made after the step;
    None: there are none. Units with equal tensors are measured once, on tensors of their own, one unit at a time.
    """
    step = _TimedStep(optimizer=optimizer, momentum=momentum, like=like, settings=settings, half=half)
    known: dict[Shapes, float] = {(): 0.0}
    for shapes in units:
        if shapes not in known:
            known[shapes] = step.unit_s(shapes)
    return [known[shapes] for shapes in units]


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimedStep:
    """The step that is timed, as `update_times` describes it."""

    optimizer: str
    momentum: float
    like: torch.Tensor
    settings: TimingSettings
    half: torch.dtype | None

    def unit_s(self, shapes: Shapes) -> float:
        """Return the median of steps after one that makes the optimizer's state, tensor by tensor where they are
        large."""
        small = [size for size in shapes if size <= MOST_ELEMENTS]
        total_s = self._tensors_s(small) if small else 0.0
        if len(small) < len(shapes):
            large = sum(size for size in shapes if size > MOST_ELEMENTS)
            total_s += self._tensors_s([MOST_ELEMENTS]) * large / MOST_ELEMENTS
        return total_s

    def _tensors_s(self, sizes: Sequence[int]) -> float:
        parameters = [nn.Parameter(self.like.new_ones(size)) for size in sizes]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 1e-3)
        made: torch.optim.Optimizer
        if self.optimizer == "sgd":
            made = torch.optim.SGD(parameters, lr=1e-4, momentum=self.momentum, fused=True)
        else:
            made = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
        taken_s: list[float] = []
        for _ in range(UPDATES + 1):
            start = read_clock(self.settings)
            torch._foreach_norm([each.grad for each in parameters if each.grad is not None])
            made.step()
            copies = [each.to(self.half) for each in parameters] if self.half is not None else []
            taken_s.append(elapsed_s(start, self.settings))
            copies.clear()
        return statistics.median(taken_s[1:])
