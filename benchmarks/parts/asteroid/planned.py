"""Plans of the benchmark's problems by every method, each made once."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from fleetune.errors import Infeasible
from fleetune.solving.hpp.case import Case
from fleetune.solving.hpp.draft import Draft, judge
from fleetune.solving.hpp.draft import Stage as DraftStage
from fleetune.solving.hpp.formula import all_reduce_s
from fleetune.solving.hpp.problem import Problem
from fleetune.solving.hpp.solution import Solution, Stage
from fleetune.solving.hpp.solve import solve
from fleetune.solving.hpp.volume import hetpipe_bytes, synchronous_bytes

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
    case = Case(problem)
    if found.virtual_workers is not None:
        return _of_hetpipe(case, found)
    return costed(case, _draft(case, found.stages), found.solve_s)


def costed(case: Case, draft: Draft, solve_s: float = 0.0) -> Planned:
    """What a draft costs by the exact simulation."""
    verdict = judge(case, draft)
    return Planned(
        round_s=verdict.round_s,
        fits=verdict.lack is None,
        peak_bytes=max(max(of_stage) for of_stage in verdict.memory_bytes),
        volume_bytes=synchronous_bytes(case, draft),
        reduce_s=max(all_reduce_s(case, stage.devices, stage.first, stage.end) for stage in draft.stages),
        solve_s=solve_s,
        draft=draft,
        words=_words(case, draft),
    )


def _of_hetpipe(case: Case, found: Solution) -> Planned:
    assert found.virtual_workers is not None
    workers = [(_draft(case, worker.stages), worker.micro_batches) for worker in found.virtual_workers]
    return Planned(
        round_s=found.objective,
        fits=found.feasible,
        peak_bytes=max(found.memory_bytes.values()),
        volume_bytes=hetpipe_bytes(case, workers),
        reduce_s=0.0,
        solve_s=found.solve_s,
        draft=workers[0][0],
        words=" and ".join(f"[{_words(case, draft)}]" for draft, _ in workers),
    )


def _draft(case: Case, stages: Sequence[Stage]) -> Draft:
    number = {device.name: place for place, device in enumerate(case.problem.devices)}
    drafted = tuple(
        DraftStage(
            *stage.layers,
            tuple(number[share.name] for share in stage.devices),
            tuple(share.samples for share in stage.devices),
        )
        for stage in stages
    )
    return Draft(drafted, tuple(stage.warmup for stage in stages))


def _words(case: Case, draft: Draft) -> str:
    names = [device.name for device in case.problem.devices]
    return " | ".join(
        " + ".join(f"{names[device]} {samples}" for device, samples in zip(stage.devices, stage.samples, strict=True))
        for stage in draft.stages
    )
