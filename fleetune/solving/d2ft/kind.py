"""Registration of kind "d2ft". Imports no solver."""

from collections import Counter
from typing import Any

from fleetune.contracts import wire
from fleetune.solving.d2ft.methods import SUMMARIES
from fleetune.solving.d2ft.problem import Problem, Solution
from fleetune.solving.kind import Kind
from fleetune.solving.validation import plural


def _parse(plain: Any, owner: str) -> Problem:
    return wire.load(Problem, plain, owner)


def _methods() -> dict[str, str]:
    return dict(SUMMARIES)


def _solve(problem: Problem, *, method: str, time_limit_s: float | None, seed: int) -> Solution:
    from fleetune.solving.d2ft.solve import solve

    return solve(problem, method=method, seed=seed)


def in_short(plan: Solution) -> str:
    """Summarise a plan: `4 subnets x 5 micro-batches: 12 full, 4 forward-only, 4 shortcut, 0 untrained`."""
    found = Counter(operation for row in plan.table for operation in row)
    size = f"{plural(len(plan.table), 'subnet')} x {plural(len(plan.table[0]), 'micro-batch')}"
    shares = ", ".join(f"{found[code]} {name}" for code, name in ((1, "full"), (2, "forward-only"), (3, "shortcut")))
    return f"{size}: {shares}, {plan.untrained_micro_batches} untrained"


D2FT = Kind(
    name="d2ft",
    summary="dynamic operation selection (D2FT): what each subnet trains, runs forward only, or lets pass",
    objective="score",
    unit="",
    parse=_parse,
    methods=_methods,
    solve=_solve,
    in_short=in_short,
)
