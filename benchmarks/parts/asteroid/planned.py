"""Plans of the benchmark's problems by every method, each made once."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from fleetune.errors import Infeasible
from fleetune.solving.hpp.draft import Draft, DraftStage, all_reduce_s, evaluate, hetpipe_bytes, synchronous_bytes
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.problem import Problem, Solution, Stage
from fleetune.solving.hpp.solve import solve

FORCED = "search!"
"""`search` that may leave no device out."""


class Planned(NamedTuple):
    """A plan, and what it costs."""

    round_s: float
    fits: bool
    """Whether every device has the memory."""
    peak_bytes: int
    """Of the device that needs most."""
    volume_bytes: int
    """That cross between devices: eq. (1) of hetpipe, eq. (2) of all others."""
    reduce_s: float
    """The longest all-reduce."""
    solve_s: float
    draft: Draft
    """Of hetpipe, its first virtual worker's."""
    words: str
    """`nano-0 64 + nano-1 64 | nano-2 128`"""


def planned(problem: Problem, method: str) -> Planned | None:
    """The plan of a method; None where it finds none."""
    return _planned(_Known(problem), method)


def must(problem: Problem, method: str) -> Planned:
    """The plan of a method that finds one."""
    found = planned(problem, method)
    assert found is not None, f"{method} finds no plan"
    return found


class _Known:
    """A problem as a key: by identity, since a hash over its tables would take longer than some plans."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def __hash__(self) -> int:
        return id(self.problem)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and other.problem is self.problem


@cache
def _planned(known: _Known, method: str) -> Planned | None:
    problem = known.problem
    name, every_device = ("search", True) if method == FORCED else (method, False)
    try:
        found = solve(problem, method=name, every_device=every_device)
    except Infeasible:
        return None
    instance = Instance(problem)
    if found.virtual_workers is not None:
        return _of_hetpipe(instance, found)
    return costed(instance, _draft(instance, found.stages), found.solve_s)


def costed(instance: Instance, draft: Draft, solve_s: float = 0.0) -> Planned:
    """What a draft costs by the exact simulation."""
    cost = evaluate(instance, draft)
    return Planned(
        round_s=cost.round_s,
        fits=cost.shortfall is None,
        peak_bytes=max(max(of_stage) for of_stage in cost.memory_bytes),
        volume_bytes=synchronous_bytes(instance, draft),
        reduce_s=max(all_reduce_s(instance, stage.devices, stage.first, stage.end) for stage in draft.stages),
        solve_s=solve_s,
        draft=draft,
        words=_words(instance, draft),
    )


def _of_hetpipe(instance: Instance, found: Solution) -> Planned:
    assert found.virtual_workers is not None
    workers = [(_draft(instance, worker.stages), worker.micro_batches) for worker in found.virtual_workers]
    return Planned(
        round_s=found.objective,
        fits=found.feasible,
        peak_bytes=max(found.memory_bytes.values()),
        volume_bytes=hetpipe_bytes(instance, workers),
        reduce_s=0.0,
        solve_s=found.solve_s,
        draft=workers[0][0],
        words=" and ".join(f"[{_words(instance, draft)}]" for draft, _ in workers),
    )


def _draft(instance: Instance, stages: Sequence[Stage]) -> Draft:
    number = {device.name: place for place, device in enumerate(instance.problem.devices)}
    drafted = tuple(
        DraftStage(
            *stage.layers,
            tuple(number[share.name] for share in stage.devices),
            tuple(share.samples for share in stage.devices),
        )
        for stage in stages
    )
    return Draft(drafted, tuple(stage.warmup for stage in stages))


def _words(instance: Instance, draft: Draft) -> str:
    names = [device.name for device in instance.problem.devices]
    return " | ".join(
        " + ".join(f"{names[device]} {samples}" for device, samples in zip(stage.devices, stage.samples, strict=True))
        for stage in draft.stages
    )
