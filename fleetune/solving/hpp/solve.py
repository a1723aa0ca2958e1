"""Solving a problem of kind "hpp" by a named method."""

import time
from importlib import import_module

from fleetune.errors import Infeasible, Refused
from fleetune.solving.hpp.bound import lower_bound_s
from fleetune.solving.hpp.candidate import OUT_OF_MEMORY
from fleetune.solving.hpp.draft import Draft, DraftCost, DraftStage, evaluate
from fleetune.solving.hpp.infeasibility import describe_shortfall, explain_infeasible
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.methods import SUMMARIES, hetpipe
from fleetune.solving.hpp.methods.search import Search, SearchOptions
from fleetune.solving.hpp.pipeline_program import needed_bytes
from fleetune.solving.hpp.problem import Problem
from fleetune.solving.hpp.solution import Share, Solution, Stage, VirtualWorker
from fleetune.solving.memory import require_memory
from fleetune.solving.validation import plural


def solve(
    problem: Problem,
    *,
    method: str = "search",
    time_limit_s: float | None = None,
    seed: int = 0,
    lost_s_per_byte: tuple[float, ...] = (),
    every_device: bool = False,
) -> Solution:
    """Plan by one of the methods.

    Only `search` uses `time_limit_s` (None: a fixed amount of work), `seed` and `every_device`, whether all devices
    must take part. `lost_s_per_byte`: see `Instance`. Raises Refused for an unknown method; Infeasible, naming a device
    and its missing bytes, where a method that respects memory finds no plan.
    """
    if method not in SUMMARIES:
        raise Refused(f"method: {method!r} is not known; allowed are {', '.join(SUMMARIES)}")
    layers, devices = len(problem.layers), len(problem.devices)
    if method == "asteroid":
        require_memory(needed_bytes(layers, devices), f"{layers} layers on {devices} devices")
    started = time.perf_counter()
    instance = Instance(problem, lost_s_per_byte)
    if method == "hetpipe":
        return _of_hetpipe(instance, started)
    bound_s = lower_bound_s(instance)
    deterministic = True
    if method == "search":
        options = SearchOptions(seed=seed, time_limit_s=time_limit_s, every_device=every_device)
        draft, deterministic = _searched(instance, options, bound_s), time_limit_s is None
    else:
        draft = import_module(f"fleetune.solving.hpp.methods.{method}").plan(instance)
    cost = evaluate(instance, draft)
    return Solution(
        method=method,
        feasible=cost.shortfall is None,
        reason="" if cost.shortfall is None else describe_shortfall(instance, draft, cost.shortfall),
        objective=cost.round_s,
        lower_bound=bound_s,
        solve_s=time.perf_counter() - started,
        deterministic=deterministic,
        stages=_stages(instance, draft),
        formula_round_s=cost.formula_round_s,
        memory_bytes=_memory(instance, draft, cost),
    )


def _searched(instance: Instance, options: SearchOptions, bound_s: float) -> Draft:
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
    if instance.devices > stages * instance.samples:
        raise Infeasible(
            f"every_device: {instance.devices} devices cannot all take part, {plural(stages, 'stage')} of "
            f"{plural(instance.samples, 'sample')} occupy at most {stages * instance.samples}; leave some out"
        )


def _of_hetpipe(instance: Instance, started: float) -> Solution:
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
        solve_s=time.perf_counter() - started,
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


def _memory(instance: Instance, draft: Draft, cost: DraftCost) -> dict[str, int]:
    return {
        instance.problem.devices[device].name: peak
        for stage, peaks in zip(draft.stages, cost.memory_bytes, strict=True)
        for device, peak in zip(stage.devices, peaks, strict=True)
    }
