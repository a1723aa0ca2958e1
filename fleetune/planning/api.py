"""Entry points of planning: list the strategies, check a request before anything is measured, solve, and cite."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from fleetune.checks import check_local_data, validate
from fleetune.contracts import json_io
from fleetune.contracts.link_codecs import ROTATED
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.record import one_of
from fleetune.contracts.run_config import StrategyRequest
from fleetune.errors import Refused
from fleetune.planning import papers
from fleetune.planning.compression import AUTO
from fleetune.planning.recompute import within_memory
from fleetune.planning.strategies.asteroid import Asteroid
from fleetune.planning.strategies.d2ft import D2FT
from fleetune.planning.strategies.dp import DataParallel
from fleetune.planning.strategies.fusionllm import FusionLLM
from fleetune.planning.strategies.lola_deft import LolaDeft
from fleetune.planning.strategies.pp import PipelineParallel
from fleetune.planning.strategies.single import Single
from fleetune.planning.strategies.split_learning import SplitLearning
from fleetune.planning.strategy import Problem, Strategy, require_trainable
from fleetune.solving import kinds

DEVICE_OPTIONS = ("device", "devices", "server", "helpers", "clients", "groups", "budgets", "local_rounds")
"""Options of any strategy whose values are names of devices."""


def strategies() -> dict[str, Strategy]:
    """All strategies by name."""
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
    """Solve a problem with the strategy `name`; the plan has passed all checks of `fleetune.checks`.

    `now` returns seconds and is read twice, for `solve_s`. Raises Refused for an unknown strategy, unknown options or
    a problem that the strategy does not support, and Infeasible if no plan of the strategy satisfies the problem.
    """
    strategy = _strategy(name)
    started_s = now()
    reason = strategy.unsupported_reason(problem)
    if reason:
        raise Refused(f"strategy {name}: {reason}")
    require_trainable(problem)
    result = within_memory(problem, strategy.plan)
    validate(result.plan, problem.fleet, problem.profile)
    if problem.owners:
        check_local_data(result.plan, problem.profile, problem.owners)
    return replace(result, solve_s=now() - started_s, options=problem.options, recompute=problem.recompute)


def validate_request(request: StrategyRequest, devices: Sequence[str] | None, scores: bool) -> Any:
    """Check the strategy section of a run file before anything is measured, and return its options.

    devices: names of the fleet's devices; None if more devices may join. scores: True if the profile scores heads.
    Raises Refused for an unknown strategy, option, method or device, and for a strategy that needs scores without them.
    """
    strategy, owner = _strategy(request.name), f"strategy {request.name}"
    options: Any = json_io.load(strategy.options, request.options, owner)
    for option, kind in strategy.methods.items():
        if getattr(options, option) is not None:
            one_of(owner, option, getattr(options, option), kinds()[kind].methods)
    for option in DEVICE_OPTIONS if devices is not None else ():
        for name in _strings(getattr(options, option, None)):
            one_of(f"{owner}: option {option}", "device", name, devices or ())
    if getattr(strategy, "needs_scores", False) and not scores:
        raise Refused(f"{owner}: it selects by scores of heads, which are not measured; set profile.scores=true")
    return options


def citations(request: StrategyRequest) -> tuple[str, ...]:
    """BibTeX entries of the papers that a strategy with these options follows: its own first, then its methods'.

    Raises Refused for an unknown strategy, option or method.
    """
    options = validate_request(request, None, scores=True)
    strategy = _strategy(request.name)
    texts = [strategy.citation]
    for option, kind in strategy.methods.items():
        texts.append(papers.BY_METHOD.get(kind, {}).get(getattr(options, option), ""))
    if getattr(options, "compression_ratio", None) is not None:
        texts.append(papers.FUSIONLLM)
    if getattr(options, "compression", None) in (AUTO, *ROTATED):
        texts.append(papers.TAH_QUANT)
    return tuple(dict.fromkeys(entry for text in texts for entry in text.split("\n\n") if entry))


def _strategy(name: str) -> Strategy:
    known = strategies()
    if name not in known:
        raise Refused(f"strategy: {name!r} is not known; allowed are {', '.join(known)}")
    return known[name]


def _strings(value: Any) -> Iterator[str]:
    """Yields every string in an option, however nested; the keys of a mapping."""
    if isinstance(value, str):
        yield value
    elif value is not None:
        for item in value:
            yield from _strings(item)
