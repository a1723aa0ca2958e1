"""Kind "d2ft": choose the operation that every subnet runs on every micro-batch.

Source: Ding, Zhang, Wang, Ateniese, Yuan: You Don't Need All Attentions: Distributed Dynamic Fine-Tuning for Foundation
Models (D2FT, arXiv 2025). A subnet (one head and its part of the feed-forward network) trains a micro-batch fully, runs
it forward only, or skips it; scores give the value of each, budgets limit them. Costs are a subnet's own, so within a
subnet a knapsack takes as many of the best as fit, exactly on the decimals as written. Rejected alternatives: the
paper's dynamic program over capacities, kept only as a general knapsack for micro-batches of different length; rotating
ties by a stride, which periodic capacities defeat.
"""

from collections import Counter
from functools import partial

from fleetune.contracts import json_io
from fleetune.solving.api import Kind
from fleetune.solving.d2ft.methods import SUMMARIES
from fleetune.solving.d2ft.problem import Problem, Solution
from fleetune.solving.validation import plural


def _solve(problem: Problem, *, method: str, time_limit_s: float | None, seed: int) -> Solution:
    from fleetune.solving.d2ft.solve import solve

    return solve(problem, method=method, seed=seed)


def describe_plan(plan: Solution) -> str:
    """Summarise a plan: `4 subnets x 5 micro-batches: 12 full, 4 forward-only, 4 shortcut, 0 untrained`."""
    found = Counter(operation for row in plan.table for operation in row)
    size = f"{plural(len(plan.table), 'subnet')} x {plural(len(plan.table[0]), 'micro-batch')}"
    shares = ", ".join(f"{found[code]} {name}" for code, name in ((1, "full"), (2, "forward-only"), (3, "shortcut")))
    return f"{size}: {shares}, {plan.untrained_micro_batches} untrained"


D2FT = Kind(
    name="d2ft",
    summary="dynamic operation selection (D2FT): what each subnet trains, runs forward only, or skips",
    objective="score",
    unit="",
    parse=partial(json_io.load, Problem),
    methods=SUMMARIES,
    solve=_solve,
    describe_plan=describe_plan,
)
