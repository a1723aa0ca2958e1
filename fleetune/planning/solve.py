"""Ask a strategy by name."""

import time
from collections.abc import Callable
from dataclasses import replace

from fleetune.checks import validate
from fleetune.contracts.plan import PlanResult
from fleetune.errors import Refused
from fleetune.planning.problem import Problem
from fleetune.planning.strategies.asteroid import Asteroid
from fleetune.planning.strategies.d2ft import D2FT
from fleetune.planning.strategies.dp import DataParallel
from fleetune.planning.strategies.fusionllm import FusionLLM
from fleetune.planning.strategies.lola_deft import LolaDeft
from fleetune.planning.strategies.pp import PipelineParallel
from fleetune.planning.strategies.single import Single
from fleetune.planning.strategies.split_learning import SplitLearning
from fleetune.planning.strategy import Strategy


def strategies() -> dict[str, Strategy]:
    """Every strategy by its name."""
    known: tuple[Strategy, ...] = (
        Asteroid(),
        Single(),
        DataParallel(),
        PipelineParallel(),
        FusionLLM(),
        LolaDeft(),
        SplitLearning(),
        D2FT(),
    )
    return {strategy.name: strategy for strategy in known}


def solve(name: str, problem: Problem, now: Callable[[], float] = time.perf_counter) -> PlanResult:
    """A plan that fleet and profile can run, proven by `checks` before it is handed out.

    `now` gives seconds and is read twice, for `solve_s`. Raises Refused for an unknown strategy, options it does not
    have or a problem it does not support, Infeasible where nothing satisfies the problem.
    """
    known = strategies()
    if name not in known:
        raise Refused(f"strategy: {name!r} is not known; allowed are {', '.join(known)}")
    started = now()
    reason = known[name].supports(problem)
    if reason:
        raise Refused(f"strategy {name}: {reason}")
    result = known[name].plan(problem)
    validate(result.plan, problem.fleet, problem.profile)
    return replace(result, solve_s=now() - started)
