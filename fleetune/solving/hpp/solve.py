"""Solving a problem of kind "hpp" by a named method, and its error messages where no plan fits."""

from collections.abc import Callable

import numpy as np

from fleetune.errors import Infeasible
from fleetune.solving.hpp.bound import lower_bound_s
from fleetune.solving.hpp.candidate import OUT_OF_MEMORY
from fleetune.solving.hpp.draft import Draft, DraftCost, DraftStage, MemoryShortfall, evaluate
from fleetune.solving.hpp.instance import Extras, Instance
from fleetune.solving.hpp.methods import SUMMARIES, asteroid, dapple, hetpipe, pipedream
from fleetune.solving.hpp.methods.baselines import dp, eddl, pp, single
from fleetune.solving.hpp.methods.search import Search, SearchOptions
from fleetune.solving.hpp.problem import Problem, Share, Solution, Stage, VirtualWorker
from fleetune.solving.limits import Deadline, require_memory
from fleetune.solving.validation import plural, validate_choice

PLANNERS: dict[str, Callable[[Instance], Draft]] = {
    "asteroid": asteroid.plan,
    "single": single,
    "dp": dp,
    "pp": pp,
    "eddl": eddl,
    "dapple": dapple.plan,
    "pipedream": pipedream.plan,
}
NO_EXTRAS = Extras()


def solve(
    problem: Problem,
    *,
    method: str = "search",
    time_limit_s: float | None = None,
    seed: int = 0,
    extras: Extras = NO_EXTRAS,
    every_device: bool = False,
) -> Solution:
    """Plan by one of the methods.

    Only `search` uses `time_limit_s` (None: a fixed amount of work), `seed` and `every_device`, whether all devices
    must take part. Raises Refused for an unknown method; Infeasible, naming a device and its missing bytes, where a
    method that respects memory finds no plan.
    """
    validate_choice("method", method, SUMMARIES)
    layers, devices = len(problem.layers), len(problem.devices)
    if method == "asteroid":
        require_memory(asteroid.needed_bytes(layers, devices), f"{layers} layers on {devices} devices")
    clock = Deadline(time_limit_s)
    instance = Instance(problem, *extras)
    if method == "hetpipe":
        return _solve_hetpipe(instance, clock)
    bound_s = lower_bound_s(instance)
    deterministic = True
    if method == "search":
        left_s = clock.left_s() if clock.limited else None  # after the bound
        options = SearchOptions(seed=seed, time_limit_s=left_s, every_device=every_device)
        draft, deterministic = _solve_by_search(instance, options, bound_s), not clock.limited
    else:
        draft = PLANNERS[method](instance)
    cost = evaluate(instance, draft)
    return Solution(
        method=method,
        feasible=cost.shortfall is None,
        reason="" if cost.shortfall is None else describe_shortfall(instance, draft, cost.shortfall),
        objective=cost.round_s,
        lower_bound=bound_s,
        solve_s=clock.elapsed_s(),
        deterministic=deterministic,
        stages=_stages(instance, draft),
        formula_round_s=cost.formula_round_s,
        memory_bytes=_memory_bytes(instance, draft, cost),
    )


def _solve_by_search(instance: Instance, options: SearchOptions, bound_s: float) -> Draft:
    if options.every_device:
        _check_sample_count(instance)
    found = Search(instance, options, bound_s).best()
    if found.score >= OUT_OF_MEMORY:
        raise Infeasible(explain_infeasible(instance, found.draft))
    return found.draft


def _check_sample_count(instance: Instance) -> None:
    """Infeasible where all stages together have fewer samples than devices that must take part."""
    listed = instance.problem.warmup
    stages = instance.max_stages if isinstance(listed, str) else len(listed)
    each = np.sort(instance.samples // instance.min_samples)[::-1]  # a stage has at most the devices of any layer
    most = int(np.sum(each[:stages]))
    if instance.devices > most:
        raise Infeasible(
            f"every_device: {instance.devices} devices cannot all take part, {plural(stages, 'stage')} of "
            f"{plural(instance.samples, 'sample')} occupy at most {most}; leave some out"
        )


def _solve_hetpipe(instance: Instance, clock: Deadline) -> Solution:
    found = hetpipe.plan(instance)
    lacks = [
        peak - device.memory_bytes for peak, device in zip(found.memory_bytes, instance.problem.devices, strict=True)
    ]
    worst = max(range(instance.devices), key=lacks.__getitem__)
    workers = tuple(
        VirtualWorker(
            devices=tuple(instance.problem.devices[d].name for stage in worker.draft.stages for d in stage.devices),
            stages=_stages(instance, worker.draft),
            micro_batches=worker.micro_batches,
        )
        for worker in found.virtual_workers
    )
    name, size = instance.problem.devices[worst].name, instance.problem.devices[worst].memory_bytes
    return Solution(
        method="hetpipe",
        feasible=lacks[worst] <= 0,
        reason=f"device {name} lacks {lacks[worst]} bytes ({found.memory_bytes[worst]} of {size})"
        if lacks[worst] > 0
        else "",
        objective=found.round_s,
        lower_bound=None,
        solve_s=clock.elapsed_s(),
        deterministic=True,
        stages=(),
        formula_round_s=None,
        memory_bytes={
            device.name: peak
            for device, peak in zip(instance.problem.devices, found.memory_bytes, strict=True)
            if peak > 0
        },
        virtual_workers=workers,
    )


def _stages(instance: Instance, draft: Draft) -> tuple[Stage, ...]:
    return tuple(_stage(instance, stage, k) for stage, k in zip(draft.stages, draft.warmups, strict=True))


def _stage(instance: Instance, stage: DraftStage, warmup: int) -> Stage:
    names = [instance.problem.devices[device].name for device in stage.devices]
    shares = tuple(Share(name=name, samples=y) for name, y in zip(names, stage.samples, strict=True))
    return Stage(layers=(stage.first, stage.end), devices=shares, warmup=warmup)


def _memory_bytes(instance: Instance, draft: Draft, cost: DraftCost) -> dict[str, int]:
    return {
        instance.problem.devices[device].name: peak
        for stage, peaks in zip(draft.stages, cost.memory_bytes, strict=True)
        for device, peak in zip(stage.devices, peaks, strict=True)
    }


def explain_infeasible(instance: Instance, nearest: Draft) -> str:
    """Name the binding constraint of an instance for which no plan was found.

    Checked in this order: a layer that no device can hold; all weights with their state against the sum of all
    memories; in `nearest`, the draft with the smallest shortfall of those tried, a stage with too few samples for its
    devices, or else the device with the largest shortfall.
    """
    names = [layer.name for layer in instance.problem.layers]
    first = np.arange(instance.layers)
    alone = instance.bytes.peak(first, first + 1, instance.min_samples)
    largest, roomiest = int(np.argmax(alone)), int(np.argmax(instance.memory_bytes))
    room = int(instance.memory_bytes[roomiest])
    if alone[largest] > room:
        return (
            f"device {instance.problem.devices[roomiest].name}, the roomiest, lacks {int(alone[largest]) - room} "
            f"bytes for layer {names[largest]} alone with {_samples_in_words(int(instance.min_samples[largest]))} "
            f"({int(alone[largest])} of {room}); split the "
            "layer, train fewer of its parameters or add a device with more memory"
        )
    total, have = int(instance.bytes.state(0, instance.layers)), int(np.sum(instance.memory_bytes))
    if total > have:
        return (
            f"all layers with gradients, optimizer state and snapshots need {total} bytes, all devices together have "
            f"{have}; train fewer parameters or add memory"
        )
    for stage in nearest.stages:
        least = instance.least_samples(stage.first, stage.end)
        if min(stage.samples) < least:
            return (
                f"{plural(len(stage.devices), 'device')} would share {plural(instance.samples, 'sample')} of "
                f"{_span(instance, stage)}, of which each needs at least {least} for training; no plan was found "
                "that gives every device enough: leave devices out"
                + (" or take larger micro-batches" if least < instance.samples else "")
            )
    shortfall = evaluate(instance, nearest).shortfall
    assert shortfall is not None, "only called where nothing fits"
    described = describe_shortfall(instance, nearest, shortfall)
    return f"{described}; no plan was found that fits all memories: take smaller micro-batches"


def describe_shortfall(instance: Instance, draft: Draft, shortfall: MemoryShortfall) -> str:
    """Name the device, the missing bytes and the layers, samples and micro-batches that need them."""
    stage = draft.stages[shortfall.stage]
    samples = stage.samples[stage.devices.index(shortfall.device)]
    device = instance.problem.devices[shortfall.device]
    kept = min(draft.warmups[shortfall.stage], instance.micro_batches)
    each = "the one micro-batch" if kept == 1 else f"each of {kept} micro-batches"
    needed, room = device.memory_bytes + shortfall.missing_bytes, device.memory_bytes
    return (
        f"device {device.name} lacks {shortfall.missing_bytes} bytes for {_span(instance, stage)} with "
        f"{plural(samples, 'sample')} of {each} kept ({needed} of {room})"
    )


def _span(instance: Instance, stage: DraftStage) -> str:
    first, last = instance.problem.layers[stage.first].name, instance.problem.layers[stage.end - 1].name
    return f"layer {first}" if stage.end == stage.first + 1 else f"layers {first} to {last}"


def _samples_in_words(samples: int) -> str:
    return "one sample" if samples == 1 else plural(samples, "sample")
