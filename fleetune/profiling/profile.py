"""The profile of a prepared model on a fleet: measures on all devices at once, computes the times of simulated devices,
and scores attention heads where the run asks for it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fleetune.contracts import json_io
from fleetune.contracts.fleet import DOCKER, Device
from fleetune.contracts.link_codecs import ELEMENT_BYTES
from fleetune.contracts.profile import DeviceTimes, Profile, Unit
from fleetune.errors import Refused
from fleetune.models.batch_norms import sees_whole_batch
from fleetune.models.compute_copies import copy_bytes
from fleetune.models.graph import MODULE, Graph, parse_graph
from fleetune.models.meta_run import run_on_meta
from fleetune.models.skeleton import saved_configuration, skeleton
from fleetune.models.units import crossing_values, is_cuttable, state_by_unit, tied_parameters_by_unit
from fleetune.profiling.head_subnets import heads_to_score, scored_subnets
from fleetune.profiling.measuring_job import measure_fleet
from fleetune.profiling.memory import with_slack
from fleetune.profiling.messages import DeviceMeasurement, UnitMeasurement
from fleetune.profiling.simulated import simulated_times, unit_work
from fleetune.profiling.task import ProfilingTask


def profile(task: ProfilingTask) -> Profile:
    """Measure every unit of a prepared model on every device; the profile is written and returned."""
    graph = parse_graph((task.model_folder / "graph.json").read_bytes(), "graph.json")
    module = skeleton(saved_configuration(task.model_folder / "model"), task.model)
    scored = heads_to_score(task, graph, module) if task.scores else ()
    smallest, samples = smallest_batch(graph, module), task.training.micro_batch_samples
    _check_micro_batch(samples, smallest)
    costs = _simulate(task, graph, module) if task.fleet.simulated else _measure(task, smallest)
    units = with_workspaces(
        with_min_samples(
            unit_sizes(graph, module, costs.activation_bytes, costs.flops, samples),
            min_samples(graph, module, samples),
        ),
        costs.workspace_bytes,
        costs.sizes,
    )
    subnets, rows = scored_subnets(task, graph, module, scored) if scored else ((), ())
    made = Profile(
        model=task.model.source or str((task.model.config or {}).get("model_type")),
        units=with_coded_values(graph, units) if task.codecs else units,
        batch_sizes=costs.sizes,
        times=costs.times,
        optimizer_bytes_per_param_byte=task.training.optimizer_bytes_per_param_byte,
        subnets=subnets,
        scored_rows=rows,
        element_bytes=coded_element_bytes(graph) if task.codecs else ELEMENT_BYTES,
        tied_bytes=tied_bytes(graph, module),
        shared_bytes=shared_bytes(graph, module),
    )
    json_io.write(made, task.output / "profile.json")
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class _FleetCosts:
    """Costs of units: bytes and FLOPs per sample in the order of units, times per device and batch size."""

    sizes: tuple[int, ...]
    activation_bytes: list[int]
    workspace_bytes: list[list[int]]
    """[unit][batch size]; empty on simulated devices."""
    flops: list[int]
    times: tuple[DeviceTimes, ...]


def batch_sizes(micro_batch_samples: int, smallest: int = 1) -> tuple[int, ...]:
    """Powers of two below a micro-batch, and the micro-batch itself; none below `smallest`, a power of two."""
    sizes = [smallest]
    while sizes[-1] * 2 < micro_batch_samples:
        sizes.append(sizes[-1] * 2)
    return tuple(dict.fromkeys([*sizes, micro_batch_samples]))


def _simulate(task: ProfilingTask, graph: Graph, module: nn.Module) -> _FleetCosts:
    """Compute the costs on simulated devices without starting a process."""
    sizes = batch_sizes(task.training.micro_batch_samples)
    model_type = str(saved_configuration(task.model_folder / "model").model_type)
    of_units = unit_work(graph, module, partial=task.partial)
    task.progress("profiling", 100, 100, "%")
    return _FleetCosts(
        sizes=sizes,
        activation_bytes=[work.activation_bytes for work in of_units],
        workspace_bytes=[],
        flops=[work.forward_flops for work in of_units],
        times=tuple(
            simulated_times(device, model_type, of_units, sizes, codecs=task.codecs, partial=task.partial)
            for device in task.fleet.devices
        ),
    )


def _check_micro_batch(micro_batch_samples: int, smallest: int) -> None:
    if micro_batch_samples < smallest:
        raise Refused(
            f"training: micro_batch_samples is {micro_batch_samples}, but a batch norm of the model sees one value of "
            f"each channel in a sample and needs at least {smallest} samples; raise it"
        )


def _measure(task: ProfilingTask, smallest: int) -> _FleetCosts:
    """Measure on all devices, with `smallest` samples at least; bytes and FLOPs are those of the first CPU or GPU."""
    sizes = batch_sizes(task.training.micro_batch_samples, smallest)
    found, devices = measure_fleet(task, sizes), task.fleet.devices
    first = found[next((each for each in devices if each.accelerator == "cpu"), devices[0]).name].units
    profile_bytes = with_slack(_kept_bytes(first), devices)
    return _FleetCosts(
        sizes=sizes,
        activation_bytes=[with_slack(slope_per_sample(unit.activation_bytes, sizes), devices) for unit in first],
        workspace_bytes=[[with_slack(each, devices) for each in unit.workspace_bytes] for unit in first],
        flops=[slope_per_sample(unit.flops, sizes) for unit in first],
        times=tuple(_times(device, found[device.name], task, profile_bytes) for device in devices),
    )


def _kept_bytes(units: Sequence[UnitMeasurement]) -> int:
    """Return what units keep from forward to backward at the largest batch size."""
    return sum(unit.activation_bytes[-1] for unit in units)


def _activation_share(device: Device, units: Sequence[UnitMeasurement], profile_bytes: int) -> float:
    """Return what a GPU keeps of what the profile says: its kernels keep other values, and its allocator loses none."""
    if device.accelerator == "cpu" or not profile_bytes:
        return 1.0
    return min(1.0, _kept_bytes(units) / profile_bytes) or 1.0


def _times(device: Device, measurement: DeviceMeasurement, task: ProfilingTask, profile_bytes: int) -> DeviceTimes:
    return DeviceTimes(
        device=device.name,
        runtime_bytes=measurement.runtime_bytes,
        forward_s=tuple(unit.forward_s for unit in measurement.units),
        backward_s=tuple(unit.backward_s for unit in measurement.units),
        forward_usual=tuple(unit.forward_usual for unit in measurement.units),
        backward_usual=tuple(unit.backward_usual for unit in measurement.units),
        profiling_s=measurement.profiling_s,
        codecs=measurement.codecs if task.codecs else (),
        feedback_s_per_byte=measurement.feedback_s_per_byte if task.codecs else 0.0,
        stretch=measurement.stretch if device.launcher == DOCKER else 1.0,
        spread=measurement.spread,
        update_s=tuple(unit.update_s for unit in measurement.units),
        message_wait_s=measurement.message_wait_s,
        gates=measurement.gates if task.scores else None,
        partial=measurement.partial if task.partial else None,
        activation_share=_activation_share(device, measurement.units, profile_bytes),
    )


def slope_per_sample(amounts: Sequence[int], sizes: tuple[int, ...]) -> int:
    """Slope between the smallest and the largest batch size, never below 0."""
    if len(sizes) == 1:
        return int(amounts[0] / sizes[0])
    return max(0, round((amounts[-1] - amounts[0]) / (sizes[-1] - sizes[0])))


def smallest_batch(recorded: Graph, skeleton: nn.Module) -> int:
    """Return the fewest samples that the model can be trained on at once: 2 if a batch norm sees one value of each
    channel in a sample, which has no variance in a batch of one; else 1.

    `skeleton` is the whole model on the meta device and runs there without data.
    """
    if not any(isinstance(module, _BatchNorm) for module in skeleton.modules()):
        return 1
    values: list[int] = []

    def seen(module: nn.Module, inputs: Any) -> None:
        if isinstance(module, _BatchNorm):
            values.append(math.prod(inputs[0].shape[2:]))

    run_on_meta(recorded, skeleton, seen)
    return 2 if 1 in values else 1


def min_samples(recorded: Graph, skeleton: nn.Module, micro_batch_samples: int) -> dict[str, int]:
    """Return, by unit, the fewest samples of each micro-batch that a device can have: all of them if the unit has a
    batch norm or draws what cannot be divided by samples, else 1."""
    whole = {
        unit.name
        for unit in recorded.units
        for node in map(recorded.node, unit.nodes)
        if any(draw.divided(recorded.batch) is None for draw in node.draws)
        or (node.kind == MODULE and sees_whole_batch(skeleton.get_submodule(node.target)))
    }
    return {unit.name: micro_batch_samples if unit.name in whole else 1 for unit in recorded.units}


def unit_sizes(
    graph: Graph, skeleton: nn.Module, activation_bytes: list[int], flops: list[int], micro_batch_samples: int
) -> tuple[Unit, ...]:
    """The profile's units. activation_bytes, flops: per sample, in the order of units.

    A value without a batch dimension (such as rotary angles) crosses a cut once per micro-batch; per sample it counts
    1 / micro_batch_samples of its size.
    """
    parameters, buffers = dict(skeleton.named_parameters()), dict(skeleton.named_buffers())
    state, tied = state_by_unit(graph, skeleton), tied_parameters_by_unit(graph, skeleton)
    frozen = tied_parameters_by_unit(graph, skeleton, trained=False)
    copies = copy_bytes(skeleton, graph.compute)
    made = []
    for index, unit in enumerate(graph.units):
        held = [parameters[n] for n in state[unit.name] if n in parameters]
        crossing_now = crossing_values(graph, unit.nodes[-1]) if unit is not graph.units[-1] else ()
        made.append(
            Unit(
                name=unit.name,
                param_bytes=sum(_bytes(p) for p in held),
                trainable_bytes=sum(_bytes(p) for p in held if p.requires_grad),
                buffer_bytes=sum(_bytes(buffers[n]) if n in buffers else copies.get(n, 0) for n in state[unit.name]),
                activation_bytes=activation_bytes[index],
                output_bytes=sum(_value_bytes(graph, n, micro_batch_samples) for n in crossing_now),
                gradient_bytes=sum(
                    _value_bytes(graph, n, micro_batch_samples) for n in crossing_now if graph.value(n).gradient
                ),
                flops=flops[index],
                cut_after=unit is not graph.units[-1] and is_cuttable(graph, unit.nodes[-1]),
                tied=tied[unit.name],
                frozen_tied=frozen[unit.name],
            )
        )
    return tuple(made)


def tied_bytes(graph: Graph, skeleton: nn.Module, *, trained: bool = True) -> dict[str, int]:
    """Return trained parameter that several units read -> its bytes; with `trained` False the frozen ones."""
    parameters, tied = dict(skeleton.named_parameters()), tied_parameters_by_unit(graph, skeleton, trained=trained)
    return {name: _bytes(parameters[name]) for name in sorted({name for names in tied.values() for name in names})}


def shared_bytes(graph: Graph, skeleton: nn.Module) -> dict[str, int]:
    """Return parameter that several units read -> its bytes if it is frozen, else those of its copy, if it has one."""
    copies = copy_bytes(skeleton, graph.compute)
    of_copies = {name: copies[name] for name in tied_bytes(graph, skeleton) if name in copies}
    return tied_bytes(graph, skeleton, trained=False) | of_copies


def with_min_samples(units: Sequence[Unit], fewest: Mapping[str, int]) -> tuple[Unit, ...]:
    """Return the units with the fewest samples that a device can have of each, by its name."""
    return tuple(replace(unit, min_samples=fewest[unit.name]) for unit in units)


def with_workspaces(
    units: Sequence[Unit], workspace_bytes: Sequence[Sequence[int]], sizes: tuple[int, ...]
) -> tuple[Unit, ...]:
    """Return the units with what they need while they run, of which a part grows with the samples.

    workspace_bytes: [unit][batch size]; none if unknown.
    """
    made = []
    for unit, measured in zip(units, workspace_bytes or [(0,) * len(sizes)] * len(units), strict=True):
        per_sample = slope_per_sample(measured, sizes) if len(sizes) > 1 else 0
        fixed = max(0, *(each - per_sample * size for each, size in zip(measured, sizes, strict=True)))
        made.append(replace(unit, workspace_bytes=fixed, workspace_sample_bytes=per_sample))
    return tuple(made)


def with_coded_values(graph: Graph, units: Sequence[Unit]) -> tuple[Unit, ...]:
    """Return the units with the values behind each that a codec may change: batched ones that carry a gradient."""
    return tuple(
        replace(unit, coded_elements=tuple(math.prod(_sample_shape(graph, n)) for n in _coded(graph, index)))
        for index, unit in enumerate(units)
    )


def coded_element_bytes(graph: Graph) -> int:
    """Return the size of an element that a codec may change. Refused: values of several sizes."""
    sizes = {_element_bytes(graph, number) for index in range(len(graph.units)) for number in _coded(graph, index)} or {
        ELEMENT_BYTES
    }
    if len(sizes) > 1:
        raise Refused(
            f"profile: values of {min(sizes)} and of {max(sizes)} bytes an element cross cuts of this model, which "
            "compression cannot forecast; leave compression out"
        )
    return sizes.pop()


def _coded(graph: Graph, index: int) -> list[int]:
    """Return the numbers of the values that a codec may change at the cut after a unit."""
    unit = graph.units[index]
    crossing_now = crossing_values(graph, unit.nodes[-1]) if unit is not graph.units[-1] else ()
    return [n for n in crossing_now if graph.value(n).gradient and graph.batched(n)]


def _sample_shape(graph: Graph, number: int) -> list[int]:
    return [int(size) for size in graph.value(number).shape if size != graph.batch]


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _value_bytes(graph: Graph, number: int, micro_batch_samples: int) -> int:
    """Bytes of a value per sample."""
    size_bytes = math.prod(_sample_shape(graph, number)) * _element_bytes(graph, number)
    return size_bytes if graph.batched(number) else math.ceil(size_bytes / micro_batch_samples)


def _element_bytes(graph: Graph, number: int) -> int:
    return int(torch.empty(0, dtype=getattr(torch, graph.value(number).dtype)).element_size())
