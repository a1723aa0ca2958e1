"""Times units on this device.

Units are one-unit segments, run forward in order and backward in reverse, several passes. The result is the minimum per
unit over interleaved passes, since noise only adds time. Training is subject to noise, too, so the usual time is
reported beside it: medians, scaled to add up to the median of whole passes. A median alone misses what seldom hits a
short unit and always hits some unit, such as the cold caches after a CPU quota has paused the process. As in a worker,
the first unit's forward includes reading its inputs, and the last one's the loss, and an emulated device rests after
each forward and each backward: after a rest the same work takes up to a quarter more processor time.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import sleep
from typing import Any

import torch

from fleetune.launching.process_limits import CpuThrottle
from fleetune.linux import trim_heap
from fleetune.models.graph import Graph
from fleetune.models.randomness import RandomContext
from fleetune.models.segment import SegmentRunner, Values
from fleetune.profiling.unit_bytes import Loss, detached_inputs, unit_bytes

SegmentOf = Callable[[str], SegmentRunner]
MOST_PASSES = 15
MOST_REST_S = 0.05
"""Longest rest of an emulated device after a forward or a backward. By then others have had the caches, and a longer
one would only make the measurement longer."""
WARM_PASSES = 3
"""Passes of the largest batch size that do not count. The first warms caches up; until the third, tensors still find
no freed memory of their size, and the kernel clears new pages for them, as in the first rounds of a training."""


@dataclass(slots=True)
class UnitCost:
    """Measured costs of one unit; lists have one element per batch size."""

    forward_s: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)
    forward_usual_s: list[float] = field(default_factory=list)
    """Usual times; the times above are minimums."""
    backward_usual_s: list[float] = field(default_factory=list)
    activation_bytes: list[int] = field(default_factory=list)
    workspace_bytes: list[int] = field(default_factory=list)
    flops: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """What tells the time, in seconds."""

    wall: Callable[[], float] = time.perf_counter
    cpu: Callable[[], float] = time.thread_time
    """Of this thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingSettings:
    """Settings of the measurement."""

    batch_sizes: tuple[int, ...]
    passes: int = 5
    least_s: float = 0.0
    """Wall time of the passes of a batch size: if `passes` take less, some are added, up to MOST_PASSES, so that the
    medians of a small model, whose passes differ most, stand on more of them."""
    cores: float | None = None
    """CPU quota of an emulated device, whose time is CPU time over quota; None: wall time."""
    clocks: Clocks = Clocks()

    def draws(self, size: int, micro_batch: int = 0) -> RandomContext:
        """Dropout masks as in training: drawn for the whole micro-batch (the largest size) and sliced."""
        return RandomContext(seed=0, round=0, micro_batch=micro_batch, first=0, samples=max(*self.batch_sizes, size))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedData:
    """What a worker computes beside its units, by batch size."""

    inputs: Callable[[int], Values]
    """Reads the graph's inputs, for the first segment's forward."""
    loss: Loss | None = None
    """Reads labels and returns the loss of the graph's output, for the last segment's forward; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassLog:
    """Whole passes through the units of a window, forward and backward, of all batch sizes and windows."""

    stretches: list[float] = field(default_factory=list)
    """Wall time divided by the time that counts, at least 1: how far the device falls short of its quota while it
    computes without a pause."""
    relative: list[float] = field(default_factory=list)
    """Duration of a pass divided by the median of its window and batch size."""
    after_pass: Callable[[], object] = lambda: None
    """Is called after every pass, outside its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Units that are measured together, at one batch size."""

    graph: Graph
    segments: list[SegmentRunner]
    given: Values
    """Inputs of the first unit."""
    size: int
    read: Callable[[int], Values] | None = None
    """Reads the inputs, within the time of the first unit; None: they come from a window before."""
    loss: Loss | None = None
    part: float = 1.0
    """The window's part of `TimingSettings.least_s`."""
    micro_batch: int = 0
    """Chooses the gates' operations."""
    differentiates: bool = True
    """Whether inputs of units get gradients."""


Moment = Any
"""Seconds of the measuring clock, or an event in the queue of a GPU."""


class PassClock:
    """Times of units in one pass, which no unit waits for.

    A GPU computes while this process launches what follows; to wait for each unit would count the launches of those
    that have none in a training. So its moments are events in its queue, which are read at the end of the pass.
    """

    def __init__(self, settings: TimingSettings) -> None:
        self._settings = settings
        self._taken: list[tuple[list[float], Moment, Moment]] = []

    def now(self) -> Moment:
        """Return this moment."""
        if not torch.cuda.is_initialized():
            return read_clock(self._settings)
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, times: list[float], start: Moment) -> None:
        """Let the seconds from `start` until now be appended to `times` at the end of the pass."""
        self._taken.append((times, start, self.now()))

    def end(self) -> None:
        """Append all times."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        for times, start, end in self._taken:
            times.append(self._seconds(start, end))

    def _seconds(self, start: Moment, end: Moment) -> float:
        if isinstance(start, float):
            return at_pace(end - start, self._settings)
        return float(start.elapsed_time(end)) / 1000


def measure_units(
    graph: Graph,
    windows: list[list[str]],
    load: Callable[[list[str]], dict[str, SegmentRunner]],
    data: TimedData,
    settings: TimingSettings,
    log: PassLog,
) -> Iterator[tuple[str, UnitCost]]:
    """Cost of every unit, window by window; only one window's weights are held at a time. Passes are added to `log`.

    Values that cross to the next window are kept for every batch size.
    """
    carried = {size: data.inputs(size) for size in settings.batch_sizes}
    for window in windows:
        segments = load(window)
        costs = {unit: UnitCost() for unit in window}
        for size in settings.batch_sizes:
            trim_heap()  # what smaller batches left does not fit larger ones
            at_work = Window(
                graph=graph,
                segments=[segments[unit] for unit in window],
                given=carried[size],
                size=size,
                read=data.inputs if window is windows[0] else None,
                loss=data.loss if window is windows[-1] else None,
                part=1 / len(windows),
            )
            carried[size] = _measure_window(at_work, settings, costs, log)
        yield from costs.items()
        segments.clear()


def _measure_window(window: Window, settings: TimingSettings, costs: Mapping[str, UnitCost], log: PassLog) -> Values:
    forward = [[] for _ in window.segments]  # type: list[list[float]]
    backward = [[] for _ in window.segments]  # type: list[list[float]]
    stretches: list[float] = []
    outputs: Values = window.given
    warm = WARM_PASSES if window.size == max(settings.batch_sizes) else 1
    throttle = CpuThrottle(settings.cores, sleep=rest)
    for turn in _turns(settings, window.part, warm):
        start = _both_clocks(settings)
        with throttle.throttled():
            outputs, done = forwards(window, settings, forward)
        with throttle.throttled():
            backwards(window.segments, done, settings, backward)
        stretches.append(_stretch(start, settings))
        log.after_pass()
        outputs = {number: value.detach() for number, value in outputs.items()}
        if turn < warm:
            for times in (*forward, *backward, stretches):
                times.clear()
    for place, segment in enumerate(window.segments):
        cost = costs[segment.units[0].name]
        cost.forward_s.append(min(forward[place]))
        cost.backward_s.append(min(backward[place]))
    usual = zip(window.segments, usual_times(forward), usual_times(backward), strict=True)
    for segment, forward_s, backward_s in usual:
        costs[segment.units[0].name].forward_usual_s.append(forward_s)
        costs[segment.units[0].name].backward_usual_s.append(backward_s)
    whole_s = [sum(taken) * k for *taken, k in zip(*forward, *backward, stretches, strict=True)]
    median_s = statistics.median(whole_s)
    log.stretches.extend(stretches)
    log.relative.extend(took_s / median_s for took_s in whole_s if median_s > 0)
    found = unit_bytes(window.graph, window.segments, window.given, window.size, window.loss)
    for segment, counted in zip(window.segments, found, strict=True):
        cost = costs[segment.units[0].name]
        cost.activation_bytes.append(counted.kept)
        cost.workspace_bytes.append(counted.workspace)
        cost.flops.append(counted.flops)
    return outputs


def rest(seconds: float) -> None:
    """Sleep as an emulated device does between its passes."""
    sleep(min(seconds, MOST_REST_S))


def _turns(settings: TimingSettings, part: float, warm: int) -> Iterator[int]:
    """Yield the numbers of the passes of one window and batch size, the first `warm` of which do not count."""
    start_s = 0.0
    for turn in range(max(settings.passes, MOST_PASSES if settings.least_s else 0) + warm):
        if settings.least_s and turn == warm:
            start_s = settings.clocks.wall()
        if turn >= settings.passes + warm and settings.clocks.wall() - start_s > settings.least_s * part:
            return
        yield turn


def usual_times(times: list[list[float]]) -> list[float]:
    """Return each unit's median over passes, scaled so that they add up to the median of whole passes.

    times: [unit][pass].
    """
    medians = [statistics.median(row) for row in times]
    whole_s = statistics.median(sum(column) for column in zip(*times, strict=True))
    return [median * whole_s / sum(medians) for median in medians] if sum(medians) > 0 else medians


def forwards(
    window: Window, settings: TimingSettings, times: list[list[float]]
) -> tuple[Values, list[tuple[Values, Values]]]:
    """Run every unit forward; append its time to its row of `times`.

    Returns the outputs of the last unit, and inputs and outputs of each.
    """
    held, done, pass_clock = dict(window.given), [], PassClock(settings)
    for place, segment in enumerate(window.segments):
        inputs = detached_inputs(window.graph, segment, held)
        loss: torch.Tensor | None = None
        start = pass_clock.now()
        if place == 0 and window.read is not None:
            inputs = detached_inputs(window.graph, segment, window.read(window.size))
        if not window.differentiates:
            inputs = {number: value.detach() for number, value in inputs.items()}
        outputs = segment.run(inputs, window.size, settings.draws(window.size, window.micro_batch))
        if place == len(window.segments) - 1 and window.loss is not None:
            loss = window.loss(window.size, outputs[window.graph.output])
        pass_clock.add(times[place], start)
        held = dict(outputs)
        done.append((inputs, outputs if loss is None else {window.graph.output: loss}))
    pass_clock.end()
    return held, done


def backwards(
    segments: list[SegmentRunner], done: list[tuple[Values, Values]], settings: TimingSettings, times: list[list[float]]
) -> None:
    """Backward through every unit, starting with gradients of ones at the end of the window.

    `done` is emptied on the way, as training frees a unit's activations after its backward.
    """
    gradients: Values = {}
    pass_clock = PassClock(settings)
    for place in reversed(range(len(segments))):
        inputs, outputs = done.pop()
        reached = [n for n, v in outputs.items() if v.requires_grad]
        grads = [gradients.get(n, torch.ones_like(outputs[n])) for n in reached]
        start = pass_clock.now()
        if reached:
            torch.autograd.backward([outputs[n] for n in reached], grads)
            pass_clock.add(times[place], start)
        else:
            times[place].append(0.0)
        gradients = {n: v.grad for n, v in inputs.items() if v.grad is not None}
    pass_clock.end()
    # Gradients of weights stay and are added to, as those of most micro-batches are.


def _both_clocks(settings: TimingSettings) -> tuple[float, float]:
    """Wall time and the time that counts; the former only where they differ."""
    return (settings.clocks.wall(), settings.clocks.cpu()) if settings.cores is not None else (0.0, 0.0)


def _stretch(start: tuple[float, float], settings: TimingSettings) -> float:
    """Wall time since `start` divided by the time that counts, at least 1.

    Without a container nothing holds this process to its quota, so that the wall time may be shorter.
    """
    if settings.cores is None:
        return 1.0
    wall_s, counted_s = (now - then for now, then in zip(_both_clocks(settings), start, strict=True))
    return max(1.0, wall_s * min(1.0, settings.cores) / counted_s) if counted_s > 0 else 1.0


def read_clock(settings: TimingSettings) -> float:
    """Seconds of the measuring clock: CPU time of this thread on an emulated device, else wall time.

    This thread takes part in all shared work and does the rest alone, so its time stands for all threads.
    """
    if torch.cuda.is_initialized():  # kernels run on after the call: wait for them
        torch.cuda.synchronize()
    return settings.clocks.cpu() if settings.cores is not None else settings.clocks.wall()


def elapsed_s(start: float, settings: TimingSettings) -> float:
    """Seconds since `start` at the device's speed."""
    return at_pace(read_clock(settings) - start, settings)


def at_pace(spent_s: float, settings: TimingSettings) -> float:
    """Return the seconds that an emulated device takes for so much of the measuring clock."""
    return spent_s / min(1.0, settings.cores) if settings.cores is not None else spent_s
