"""Bytes of units, counted in one forward and backward: what they keep in between, and what they need while they run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from fleetune.models.graph import Graph
from fleetune.models.segment import SegmentRunner, Values
from fleetune.profiling.live_bytes import LiveBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitBytes:
    """Bytes and FLOPs of a unit at one batch size."""

    kept: int
    """From its forward to its backward: activations, inputs and outputs, each counted once."""
    workspace: int
    """At most, while the unit runs forward or backward, beside weights, their gradients and all that is kept: values in
    between, gradients of values, and gradients of weights before they are added to those of other micro-batches."""
    flops: int
    """Forward."""


@dataclass(slots=True)
class _Run:
    """A unit between its forward and its backward."""

    segment: SegmentRunner
    inputs: Values
    outputs: Values
    storages: list[torch.UntypedStorage]
    """That the backward will read; emptied before it, so that it can free them."""


Loss = Callable[[int, torch.Tensor], torch.Tensor]
"""Returns the loss of so many samples from the graph's output."""


def unit_bytes(
    graph: Graph, segments: Sequence[SegmentRunner], given: Values, size: int, loss: Loss | None = None
) -> list[UnitBytes]:
    """Return the bytes of one-unit segments, in order; works on meta tensors, too.

    given: what enters the first. loss: is a part of the last one, which keeps what its backward reads in the output's
    place; with a large vocabulary this and its gradients take more than all else. None: there is none.
    """
    held, runs, found = dict(given), list[_Run](), list[UnitBytes]()
    for place, segment in enumerate(segments):
        inputs = detached_inputs(graph, segment, held)
        live = LiveBytes((*inputs.values(), *_state(segment)))
        with FlopCounterMode(display=False) as counter, live:
            outputs, storages = run_tracking_saved(segment, inputs, size, loss if place == len(segments) - 1 else None)
        kept = kept_bytes(inputs, outputs, storages)
        beside = live.peak_bytes - (kept - kept_bytes(inputs, {}, []))
        found.append(UnitBytes(kept=kept, workspace=max(0, beside), flops=int(counter.get_total_flops())))
        runs.append(_Run(segment, inputs, outputs, storages))
        held = outputs
    workspaces = reversed(list(_backwards(runs)))
    return [
        UnitBytes(kept=each.kept, workspace=max(each.workspace, backward), flops=each.flops)
        for each, backward in zip(found, workspaces, strict=True)
    ]


def _backwards(runs: list[_Run]) -> Iterator[int]:
    """Run the units backward, from the last to the first, and yield what each needs beside what it keeps.

    `runs` is emptied on the way.
    """
    gradients: Values = {}
    while runs:
        run = runs.pop()
        reached = [n for n, value in run.outputs.items() if value.requires_grad]
        grads = [gradients.get(n, torch.ones_like(run.outputs[n])) for n in reached]
        kept = kept_bytes(run.inputs, run.outputs, run.storages)
        values = (*run.inputs.values(), *run.outputs.values(), *grads)
        live = LiveBytes(_state(run.segment), (*run.storages, *(value.untyped_storage() for value in values)))
        run.storages.clear()
        if reached:
            with live:
                torch.autograd.backward([run.outputs[n] for n in reached], grads)
        yield max(0, live.peak_bytes - kept) if reached else 0
        gradients = {n: value.grad for n, value in run.inputs.items() if value.grad is not None}


def _state(segment: SegmentRunner) -> Iterator[torch.Tensor]:
    """Yield weights, buffers and gradients, which are there before a micro-batch; gradients that are not are made."""
    yield from (*segment.buffers.values(), *segment.read_weights().values())
    for parameter in segment.parameters.values():
        yield parameter
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            yield parameter.grad


def kept_bytes(inputs: Values, outputs: Values, kept: list[torch.UntypedStorage]) -> int:
    """Bytes held from a unit's forward to its backward: activations, inputs and outputs, each counted once."""
    storages = {storage._cdata: storage for storage in kept}
    for value in (*inputs.values(), *outputs.values()):
        storages[value.untyped_storage()._cdata] = value.untyped_storage()
    return sum(storage.nbytes() for storage in storages.values())


def run_tracking_saved(
    segment: SegmentRunner, inputs: Values, size: int, loss: Loss | None = None
) -> tuple[Values, list[torch.UntypedStorage]]:
    """Run one forward; return its outputs, or their loss, and the storages, weights excluded, that backward will read.

    Works on meta tensors, too.
    """
    held = (*segment.parameters.values(), *segment.read_weights().values())
    weights = {p.untyped_storage()._cdata for p in held}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        outputs = segment.run(inputs, size)
        if loss is not None:
            output = segment.graph.output
            outputs = {output: loss(size, outputs.pop(output))}
    return outputs, list(kept.values())


def detached_inputs(graph: Graph, segment: SegmentRunner, held: Values) -> Values:
    """The inputs of a segment among `held`, detached."""
    return {
        n: held[n].detach().requires_grad_(True) if graph.value(n).gradient else held[n].detach()
        for n in segment.input_values
    }
