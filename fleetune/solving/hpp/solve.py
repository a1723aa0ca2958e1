"""A problem of kind "hpp" solved by a method's name."""

import time
from importlib import import_module

from fleetune.errors import Infeasible, Refused
from fleetune.solving.hpp.bound import lower_bound_s
from fleetune.solving.hpp.case import Case
from fleetune.solving.hpp.draft import Draft, Verdict, judge
from fleetune.solving.hpp.draft import Stage as DraftStage
from fleetune.solving.hpp.dynamic import needed_bytes
from fleetune.solving.hpp.methods import SUMMARIES, hetpipe
from fleetune.solving.hpp.methods.search import Effort, Search
from fleetune.solving.hpp.problem import Problem
from fleetune.solving.hpp.shortage import lacking, why
from fleetune.solving.hpp.sketch import SHORT
from fleetune.solving.hpp.solution import Share, Solution, Stage, VirtualWorker
from fleetune.solving.proofs import counted
from fleetune.solving.room import prove_room


def solve(
    problem: Problem,
    *,
    method: str = "search",
    time_limit_s: float | None = None,
    seed: int = 0,
    lost_s_per_byte: tuple[float, ...] = (),
    every_device: bool = False,
) -> Solution:
    """A plan by one of the methods.

    Of `search` alone: `time_limit_s` (None: a fixed amount of work; else it goes on until then), `seed`, and
    `every_device`, whether all must take part. `lost_s_per_byte`: see `Case`. Raises Refused for an unknown method;
    Infeasible, with the device and the bytes it lacks, where a method that heeds memory finds nothing.
    """
    if method not in SUMMARIES:
        raise Refused(f"method: {method!r} is not known; allowed are {', '.join(SUMMARIES)}")
    layers, devices = len(problem.layers), len(problem.devices)
    if method == "asteroid":
        prove_room(needed_bytes(layers, devices), f"{layers} layers on {devices} devices")
    started = time.perf_counter()
    case = Case(problem, lost_s_per_byte)
    if method == "hetpipe":
        return _of_hetpipe(case, started)
    bound_s = lower_bound_s(case)
    deterministic = True
    if method == "search":
        effort = Effort(seed=seed, time_limit_s=time_limit_s, every_device=every_device)
        draft, deterministic = _searched(case, effort, bound_s), time_limit_s is None
    else:
        draft = import_module(f"fleetune.solving.hpp.methods.{method}").plan(case)
    verdict = judge(case, draft)
    return Solution(
        method=method,
        feasible=verdict.lack is None,
        reason="" if verdict.lack is None else lacking(case, draft, verdict.lack),
        objective=verdict.round_s,
        lower_bound=bound_s,
        solve_s=time.perf_counter() - started,
        deterministic=deterministic,
        stages=_stages(case, draft),
        formula_round_s=verdict.formula_round_s,
        memory_bytes=_memory(case, draft, verdict),
    )


def _searched(case: Case, effort: Effort, bound_s: float) -> Draft:
    if effort.every_device:
        _prove_places(case)
    found = Search(case, effort, bound_s).best()
    if found.score >= SHORT:
        raise Infeasible(why(case, found.draft))
    return found.draft


def _prove_places(case: Case) -> None:
    """Infeasible where there are fewer samples in all stages together than devices that must take part."""
    listed = case.problem.warmup
    stages = case.most_stages if isinstance(listed, str) else len(listed)
    if case.devices > stages * case.samples:
        raise Infeasible(
            f"every_device: {case.devices} devices cannot all take part, {counted(stages, 'stage')} of "
            f"{counted(case.samples, 'sample')} occupy at most {stages * case.samples}; leave some out"
        )


def _of_hetpipe(case: Case, started: float) -> Solution:
    found = hetpipe.plan(case)
    lacks = [peak - device.memory_bytes for peak, device in zip(found.memory_bytes, case.problem.devices, strict=True)]
    worst = max(range(case.devices), key=lacks.__getitem__)
    workers = tuple(
        VirtualWorker(
            devices=tuple(case.problem.devices[d].name for stage in worker.draft.stages for d in stage.devices),
            stages=_stages(case, worker.draft),
            micro_batches=worker.micro_batches,
        )
        for worker in found.virtual_workers
    )
    name, size = case.problem.devices[worst].name, case.problem.devices[worst].memory_bytes
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
            device.name: peak for device, peak in zip(case.problem.devices, found.memory_bytes, strict=True) if peak > 0
        },
        virtual_workers=workers,
    )


def _stages(case: Case, draft: Draft) -> tuple[Stage, ...]:
    return tuple(_stage(case, stage, k) for stage, k in zip(draft.stages, draft.warmups, strict=True))


def _stage(case: Case, stage: DraftStage, warmup: int) -> Stage:
    names = [case.problem.devices[device].name for device in stage.devices]
    shares = tuple(Share(name=name, samples=y) for name, y in zip(names, stage.samples, strict=True))
    return Stage(layers=(stage.first, stage.end), devices=shares, warmup=warmup)


def _memory(case: Case, draft: Draft, verdict: Verdict) -> dict[str, int]:
    return {
        case.problem.devices[device].name: peak
        for stage, peaks in zip(draft.stages, verdict.memory_bytes, strict=True)
        for device, peak in zip(stage.devices, peaks, strict=True)
    }
