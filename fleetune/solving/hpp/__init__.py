"""Kind "hpp": hybrid pipeline parallelism, after Asteroid (MobiCom 2024); the format is the project's contract."""

from typing import Any

from fleetune.contracts import json_io
from fleetune.errors import Refused
from fleetune.solving.api import Kind
from fleetune.solving.hpp.methods import SUMMARIES
from fleetune.solving.hpp.problem import Problem, Solution, Stage
from fleetune.solving.validation import plural

MAX_LAYERS = 200_000
"""Models have a few thousand; ten times as many take minutes with any method."""


def _parse(plain: Any, owner: str) -> Problem:
    layers = plain.get("layers")
    if isinstance(layers, list) and len(layers) > MAX_LAYERS:  # validating each of them takes minutes
        raise Refused(f"{owner}: layers: {len(layers)} are more than {MAX_LAYERS}; join neighbours")
    return json_io.load(Problem, plain, owner)


def _solve(problem: Problem, *, method: str, time_limit_s: float | None, seed: int) -> Solution:
    from fleetune.solving.hpp.solve import solve

    return solve(problem, method=method, time_limit_s=time_limit_s, seed=seed)


def describe_plan(plan: Solution) -> str:
    """Format a plan: `3 stages nano-0+nano-1 | tx2 | nx`, virtual workers in brackets."""
    if plan.virtual_workers is not None:
        workers = " ".join(f"[{_line(worker.stages)}]" for worker in plan.virtual_workers)
        return f"{plural(len(plan.virtual_workers), 'virtual worker')} {workers}"
    return f"{plural(len(plan.stages), 'stage')} {_line(plan.stages)}"


def _line(stages: tuple[Stage, ...]) -> str:
    return " | ".join("+".join(share.name for share in stage.devices) for stage in stages)


HPP = Kind(
    name="hpp",
    summary="hybrid pipeline parallelism (Asteroid): cuts, groups of devices and shares of samples of one round",
    objective="round",
    unit="s",
    parse=_parse,
    methods=SUMMARIES,
    solve=_solve,
    describe_plan=describe_plan,
)
