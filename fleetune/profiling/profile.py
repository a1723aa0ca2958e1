"""The profile of a prepared model on a fleet: measures on all devices at once, computes the times of simulated devices,
and scores attention heads where the run asks for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from fleetune.contracts import json_io
from fleetune.contracts.profile import DeviceTimes, Profile
from fleetune.errors import Refused
from fleetune.models.graph import Graph, parse_graph
from fleetune.models.skeleton import saved_configuration, skeleton
from fleetune.profiling.fleet_measurement import answers
from fleetune.profiling.messages import DeviceMeasurement
from fleetune.profiling.min_batch import min_samples
from fleetune.profiling.simulated import simulated_times, works
from fleetune.profiling.subnets import subnets, to_score
from fleetune.profiling.task import ProfilingTask
from fleetune.profiling.units import unit_sizes


def profile(task: ProfilingTask) -> Profile:
    """Measure every unit of a prepared model on every device; the profile is written and returned."""
    graph = parse_graph((task.model_folder / "graph.json").read_bytes(), "graph.json")
    module = skeleton(saved_configuration(task.model_folder / "model"), task.model)
    scored = to_score(task, graph, module) if task.scores else ()
    found = (_simulate if task.fleet.simulated else _measure)(task, graph, module)
    made = Profile(
        model=task.model.source or str((task.model.config or {}).get("model_type")),
        units=unit_sizes(graph, module, found.activation_bytes, found.flops, task.training.micro_batch_samples),
        batch_sizes=found.sizes,
        times=found.times,
        optimizer_bytes_per_param_byte=task.training.optimizer_bytes_per_param_byte,
        subnets=subnets(task, graph, module, scored) if scored else (),
    )
    json_io.write(made, task.output / "profile.json")
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Costs of units: bytes and FLOPs per sample in the order of units, times per device and batch size."""

    sizes: tuple[int, ...]
    activation_bytes: list[int]
    flops: list[int]
    times: tuple[DeviceTimes, ...]


def batch_sizes(micro_batch_samples: int, least: int = 1) -> tuple[int, ...]:
    """Powers of two below a micro-batch, and the micro-batch itself; none below `least`, a power of two."""
    sizes = [least]
    while sizes[-1] * 2 < micro_batch_samples:
        sizes.append(sizes[-1] * 2)
    return tuple(dict.fromkeys([*sizes, micro_batch_samples]))


def _simulate(task: ProfilingTask, graph: Graph, module: nn.Module) -> _Found:
    """Compute the costs on simulated devices without starting a process."""
    sizes = batch_sizes(task.training.micro_batch_samples)
    model_type = str(saved_configuration(task.model_folder / "model").model_type)
    of_units = works(graph, module)
    task.progress("profiling", 100, 100, "%")
    return _Found(
        sizes=sizes,
        activation_bytes=[work.activation_bytes for work in of_units],
        flops=[work.forward_flops for work in of_units],
        times=tuple(simulated_times(device, model_type, of_units, sizes) for device in task.fleet.devices),
    )


def _measure(task: ProfilingTask, graph: Graph, module: nn.Module) -> _Found:
    """Measure on all devices; bytes and FLOPs are those of the first one."""
    least, most = min_samples(graph, module), task.training.micro_batch_samples
    if most < least:
        raise Refused(
            f"training: micro_batch_samples is {most}, but a batch norm of the model sees one value of each channel in "
            f"a sample and needs at least {least} samples; raise it"
        )
    sizes = batch_sizes(most, least)
    found = answers(task, sizes)
    first = found[task.fleet.devices[0].name].units
    return _Found(
        sizes=sizes,
        activation_bytes=[_per_sample(unit.activation_bytes, sizes) for unit in first],
        flops=[_per_sample(unit.flops, sizes) for unit in first],
        times=tuple(_times(device.name, found[device.name]) for device in task.fleet.devices),
    )


def _times(device: str, answer: DeviceMeasurement) -> DeviceTimes:
    return DeviceTimes(
        device=device,
        runtime_bytes=answer.runtime_bytes,
        forward_s=tuple(unit.forward_s for unit in answer.units),
        backward_s=tuple(unit.backward_s for unit in answer.units),
        forward_usual=tuple(unit.forward_usual for unit in answer.units),
        backward_usual=tuple(unit.backward_usual for unit in answer.units),
        profiling_s=answer.profiling_s,
    )


def _per_sample(amounts: Sequence[int], sizes: tuple[int, ...]) -> int:
    """Slope between the smallest and the largest batch size, never below 0."""
    if len(sizes) == 1:
        return int(amounts[0] / sizes[0])
    return max(0, round((amounts[-1] - amounts[0]) / (sizes[-1] - sizes[0])))
