"""Times units on this device: one-unit segments, forward in order and backward in reverse, several passes.

The result is the minimum per unit over interleaved passes, since noise only adds time. Training is subject to noise,
too, so the median is reported beside it.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch.utils.flop_counter import FlopCounterMode

from fleetune.models.graph import Graph
from fleetune.models.process_memory import trim_heap
from fleetune.models.randomness import DrawContext
from fleetune.models.segment import SegmentRunner, Values

SegmentOf = Callable[[str], SegmentRunner]


@dataclass(slots=True)
class UnitCost:
    """Measured costs of one unit; lists have one element per batch size."""

    forward_s: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)
    forward_median_s: list[float] = field(default_factory=list)
    """Medians over the passes; the times above are minimums."""
    backward_median_s: list[float] = field(default_factory=list)
    activation_bytes: list[int] = field(default_factory=list)
    flops: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingSettings:
    """Settings of the measurement."""

    batch_sizes: tuple[int, ...]
    passes: int = 5
    cores: float | None = None
    """CPU quota of an emulated device, whose time is CPU time over quota; None: wall time."""

    def draws(self, size: int) -> DrawContext:
        """Dropout masks as in training: drawn for the whole micro-batch (the largest size) and sliced."""
        return DrawContext(seed=0, round=0, micro_batch=0, first=0, samples=max(*self.batch_sizes, size))


def measure_units(
    graph: Graph,
    windows: list[list[str]],
    load: Callable[[list[str]], dict[str, SegmentRunner]],
    inputs: Callable[[int], Values],
    settings: TimingSettings,
) -> Iterator[tuple[str, UnitCost]]:
    """Cost of every unit, window by window; only one window's weights are held at a time.

    `inputs(batch size)` returns the graph's inputs. Values that cross to the next window are kept for every batch size.
    """
    carried = {size: inputs(size) for size in settings.batch_sizes}
    for window in windows:
        segments = load(window)
        costs = {unit: UnitCost() for unit in window}
        for size in settings.batch_sizes:
            trim_heap()  # what smaller batches left does not fit larger ones
            carried[size] = _measure_window(graph, [segments[u] for u in window], carried[size], size, settings, costs)
        yield from costs.items()
        segments.clear()


def _measure_window(
    graph: Graph,
    segments: list[SegmentRunner],
    given: Values,
    size: int,
    settings: TimingSettings,
    costs: Mapping[str, UnitCost],
) -> Values:
    forward = [[] for _ in segments]  # type: list[list[float]]
    backward = [[] for _ in segments]  # type: list[list[float]]
    outputs: Values = given
    for turn in range(settings.passes + 1):  # the first warms caches up and is not counted
        outputs, done = _forwards(graph, segments, given, size, settings, forward)
        _backwards(segments, done, settings, backward)
        outputs = {number: value.detach() for number, value in outputs.items()}
        if turn == 0:
            for times in (*forward, *backward):
                times.clear()
    for place, segment in enumerate(segments):
        cost = costs[segment.units[0].name]
        cost.forward_s.append(min(forward[place]))
        cost.backward_s.append(min(backward[place]))
        cost.forward_median_s.append(statistics.median(forward[place]))
        cost.backward_median_s.append(statistics.median(backward[place]))
    _sizes(graph, segments, given, size, costs)
    return outputs


def _forwards(
    graph: Graph,
    segments: list[SegmentRunner],
    given: Values,
    size: int,
    settings: TimingSettings,
    times: list[list[float]],
) -> tuple[Values, list[tuple[Values, Values]]]:
    held, done = dict(given), []
    for place, segment in enumerate(segments):
        inputs = detached_inputs(graph, segment, held)
        start = read_clock(settings)
        outputs = segment.run(inputs, size, settings.draws(size))
        times[place].append(elapsed_s(start, settings))
        held = dict(outputs)
        done.append((inputs, outputs))
    return held, done


def _backwards(
    segments: list[SegmentRunner], done: list[tuple[Values, Values]], settings: TimingSettings, times: list[list[float]]
) -> None:
    """Backward through every unit, starting with gradients of ones at the end of the window.

    `done` is emptied on the way, as training frees a unit's activations after its backward.
    """
    gradients: Values = {}
    for place in reversed(range(len(segments))):
        inputs, outputs = done.pop()
        reached = [n for n, v in outputs.items() if v.requires_grad]
        grads = [gradients.get(n, torch.ones_like(outputs[n])) for n in reached]
        start = read_clock(settings)
        if reached:
            torch.autograd.backward([outputs[n] for n in reached], grads)
        times[place].append(elapsed_s(start, settings) if reached else 0.0)
        gradients = {n: v.grad for n, v in inputs.items() if v.grad is not None}
    # Gradients of weights stay and are added to, as those of most micro-batches are.


def _sizes(
    graph: Graph, segments: list[SegmentRunner], given: Values, size: int, costs: Mapping[str, UnitCost]
) -> None:
    """Bytes kept for backward (by storage, weights apart) and forward FLOPs of every unit at this batch size."""
    held = dict(given)
    for segment in segments:
        inputs = detached_inputs(graph, segment, held)
        with FlopCounterMode(display=False) as counter:
            held, kept = run_tracking_saved(segment, inputs, size)
        cost = costs[segment.units[0].name]
        cost.activation_bytes.append(kept_bytes(inputs, held, kept))
        cost.flops.append(int(counter.get_total_flops()))


def kept_bytes(inputs: Values, outputs: Values, kept: list[torch.UntypedStorage]) -> int:
    """Bytes held from a unit's forward to its backward: activations, inputs and outputs, each counted once."""
    storages = {storage._cdata: storage for storage in kept}
    for value in (*inputs.values(), *outputs.values()):
        storages[value.untyped_storage()._cdata] = value.untyped_storage()
    return sum(storage.nbytes() for storage in storages.values())


def run_tracking_saved(segment: SegmentRunner, inputs: Values, size: int) -> tuple[Values, list[torch.UntypedStorage]]:
    """Run one forward; return its outputs and the storages, weights excluded, that backward will read.

    Works on meta tensors, too.
    """
    weights = {p.untyped_storage()._cdata for p in segment.parameters.values()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        outputs = segment.run(inputs, size)
    return outputs, list(kept.values())


def detached_inputs(graph: Graph, segment: SegmentRunner, held: Values) -> Values:
    """The inputs of a segment among `held`, detached."""
    return {
        n: held[n].detach().requires_grad_(True) if graph.value(n).gradient else held[n].detach()
        for n in segment.input_values
    }


def read_clock(settings: TimingSettings) -> float:
    """Seconds of the measuring clock: CPU time of this thread on an emulated device, else wall time.

    This thread takes part in all shared work and does the rest alone, so its time stands for all threads.
    """
    if torch.cuda.is_available():  # kernels run on after the call: wait for them
        torch.cuda.synchronize()
    return time.thread_time() if settings.cores is not None else time.perf_counter()


def elapsed_s(start: float, settings: TimingSettings) -> float:
    """Seconds since `start` at the device's speed."""
    spent = read_clock(settings) - start
    return spent / min(1.0, settings.cores) if settings.cores is not None else spent
