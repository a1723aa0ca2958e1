"""Costs of units on simulated devices: FLOPs and bytes counted on tensors without data, times by the devices' stated
speeds. Nothing is computed, so counting takes seconds for a model of any size.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from fleetune.contracts.fleet import Device
from fleetune.contracts.link_codecs import (
    BF16,
    FORWARD_MASK,
    FP16,
    INT4,
    INT4_HADAMARD,
    INT8,
    INT8_HADAMARD,
    TOP_K,
)
from fleetune.contracts.profile import CodecTime, DeviceTimes, PartialPasses
from fleetune.models.graph import Graph
from fleetune.models.meta_run import META, META_SAMPLES, empty_input, without_device
from fleetune.models.segment import SegmentRunner, Values
from fleetune.profiling.unit_bytes import detached_inputs, run_tracking_saved

MANY = 2 * META_SAMPLES
"""Two batch sizes; the cost of a sample is the difference of their costs over the difference of the sizes."""

CODEC_FLOPS_PER_BYTE = {
    FP16: (50.0, 41.0),
    BF16: (22.0, 16.0),
    INT8: (6.0, 5.0),
    INT4: (8.0, 5.0),
    INT8_HADAMARD: (15.0, 7.0),
    INT4_HADAMARD: (17.0, 8.0),
    TOP_K: (86.0, 32.0),
    FORWARD_MASK: (4.0, 13.0),
}
"""codec -> FLOPs of float32 matrix products that take as long as encoding and decoding a dense byte. From the best
times of `benchmarks.codecs` on a core with 180 GFLOP/s, int8 and int4 with 96; the sparse codecs at a ratio of 100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitWork:
    """Work of a unit for one sample (or several)."""

    activation_bytes: int
    """Activations kept for backward, counted at the first unit that keeps them; units add up to the whole model."""
    forward_flops: int
    backward_flops: int
    layers: int
    """Number of calls of modules without children."""
    backward: bool
    """True if the backward pass reaches the unit."""
    passed_flops: int = 0
    """Of a backward that trains nothing of the unit."""
    lowest_flops: int = 0
    """Of a backward that nothing below the unit needs."""


def unit_work(recorded: Graph, skeleton: nn.Module, *, partial: bool = False) -> list[UnitWork]:
    """Work of one sample in every unit; `skeleton` is the whole model on the meta device. partial: whether backwards
    that are needed in part are counted, too.
    """
    graph = without_device(recorded)
    return [
        _difference(*both)
        for both in zip(*(_count_work(graph, skeleton, n, partial) for n in (META_SAMPLES, MANY)), strict=True)
    ]


def simulated_times(
    device: Device,
    model_type: str,
    of_units: list[UnitWork],
    batch_sizes: tuple[int, ...],
    *,
    codecs: bool = False,
    partial: bool = False,
) -> DeviceTimes:
    """Times of a simulated device (see contracts.fleet.ModelSpeed). Raises Refused if it has no speed for the model.

    codecs: whether the times of link codecs are stated, too. partial: the same of backwards that are needed in part.
    """
    assert device.simulated is not None, "only simulated devices have speeds"
    speed = device.simulated.speed(device.name, model_type)

    def row(layers: int, flops: int) -> tuple[float, ...]:
        return tuple(layers * speed.layer_s + samples * flops / speed.flops_per_s for samples in batch_sizes)

    def share(work: UnitWork, flops: int) -> float:
        whole = row(work.layers * work.backward, work.backward_flops)[-1]
        return min(1.0, row(work.layers * work.backward, flops)[-1] / whole) if whole else 1.0

    return DeviceTimes(
        device=device.name,
        runtime_bytes=0,
        forward_s=tuple(row(work.layers, work.forward_flops) for work in of_units),
        backward_s=tuple(row(work.layers * work.backward, work.backward_flops) for work in of_units),
        simulated=True,
        codecs=tuple(
            CodecTime(
                codec=codec,
                encode_s_per_byte=encode_flops / speed.flops_per_s,
                decode_s_per_byte=decode_flops / speed.flops_per_s,
            )
            for codec, (encode_flops, decode_flops) in CODEC_FLOPS_PER_BYTE.items()
        )
        if codecs
        else (),
        partial=PartialPasses(
            below=(1.0,) * len(of_units),
            passed=tuple(share(work, work.passed_flops) for work in of_units),
            lowest=tuple(share(work, work.lowest_flops) for work in of_units),
        )
        if partial
        else None,
    )


def _difference(few: UnitWork, many: UnitWork) -> UnitWork:
    return UnitWork(
        activation_bytes=(many.activation_bytes - few.activation_bytes) // (MANY - META_SAMPLES),
        forward_flops=(many.forward_flops - few.forward_flops) // (MANY - META_SAMPLES),
        backward_flops=(many.backward_flops - few.backward_flops) // (MANY - META_SAMPLES),
        layers=many.layers,
        backward=many.backward,
        passed_flops=(many.passed_flops - few.passed_flops) // (MANY - META_SAMPLES),
        lowest_flops=(many.lowest_flops - few.lowest_flops) // (MANY - META_SAMPLES),
    )


def _count_work(graph: Graph, skeleton: nn.Module, samples: int, partial: bool) -> Iterator[UnitWork]:
    """Work of every unit for `samples` samples, forward and backward."""
    held = {number: empty_input(graph, number, samples) for number in graph.inputs.values()}
    kept: dict[int, torch.UntypedStorage] = {}  # none is let go, so that none is taken for another
    for unit in graph.units:
        segment = SegmentRunner(graph, (unit.name,), skeleton, META)
        given = detached_inputs(graph, segment, held)
        with _counter() as forward, _layer_calls() as layers:
            held, keeps = run_tracking_saved(segment, given, samples)
        new = {storage._cdata: storage for storage in keeps if storage._cdata not in kept}
        kept.update(new)
        reached = any(value.requires_grad for value in held.values())
        yield UnitWork(
            activation_bytes=sum(storage.nbytes() for storage in new.values()),
            forward_flops=int(forward.get_total_flops()),
            backward_flops=_backward_flops(held),
            layers=len(layers),
            backward=reached,
            passed_flops=_backward_flops(_run_frozen(segment, given, samples)) if partial else 0,
            lowest_flops=_backward_flops(segment.run(_detached(given), samples)) if partial else 0,
        )


def _detached(values: Values) -> Values:
    return {number: value.detach() for number, value in values.items()}


def _run_frozen(segment: SegmentRunner, given: Values, samples: int) -> Values:
    """Run a segment whose parameters get no gradients."""
    trained = [each for each in segment.parameters.values() if each.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    segment.drop_copies()  # in half precision they are what gets a gradient
    outputs = segment.run(given, samples)
    for parameter in trained:
        parameter.requires_grad_(True)
    segment.drop_copies()
    return outputs


def _backward_flops(outputs: Values) -> int:
    reached = [value for value in outputs.values() if value.requires_grad]
    with _counter() as backward:
        if reached:
            torch.autograd.backward(reached, [torch.ones_like(value) for value in reached])
    return int(backward.get_total_flops())


def _counter() -> Any:
    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward})


def _convolution_backward(gradient: Any, x: Any, weight: Any, *rest: Any, **named: Any) -> int:
    """FLOPs of the backward pass: those of the forward once for the inputs and once for the weights, if required.

    torch's FLOP counter counts a grouped convolution as dense, a hundred times too many for a depthwise one.
    """
    transposed, wanted = rest[4], rest[7]
    return int(conv_flop_count(x, weight, gradient, transposed=transposed)) * sum(map(bool, wanted[:2]))


@contextmanager
def _layer_calls() -> Iterator[list[nn.Module]]:
    """Collects the called modules without children."""
    called: list[nn.Module] = []

    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        if not any(True for _ in module.children()):
            called.append(module)

    handle = register_module_forward_hook(hook)
    try:
        yield called
    finally:
        handle.remove()
