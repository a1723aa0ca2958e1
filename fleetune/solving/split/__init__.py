"""Kind "split": parallel split learning. Choose a helper for the middle part of each client's network, and an order.

Source: J. Tirana, D. Tsigkari, G. Iosifidis, D. Chatzopoulos, "Workflow Optimization for Parallel Split Learning", IEEE
INFOCOM 2024. Contains both methods of the paper, its baseline, and an exact search with bounds that close most of
the gap.

Rejected alternatives: the paper's slot-indexed variables. Times are whole units of any size, a preemptive sub-problem
is stated by windows, and schedules are rows, so that their size does not grow with a plan's length. Tasks of length 0,
which would have no row in a plan: forward and backward take at least one unit.
"""

from functools import partial

from fleetune.contracts import json_io
from fleetune.solving.api import Kind
from fleetune.solving.split.methods import SUMMARIES
from fleetune.solving.split.problem import Problem, Solution
from fleetune.solving.validation import plural

MAX_SHOWN = 12
"""Helpers listed one by one."""


def _solve(problem: Problem, *, method: str, time_limit_s: float | None, seed: int) -> Solution:
    from fleetune.solving.split.solve import solve

    return solve(problem, method=method, time_limit_s=time_limit_s, seed=seed)


def describe_plan(plan: Solution) -> str:
    """Summarise a plan: `5 clients on 2 helpers (3 + 2)`, and the number of interruptions if any."""
    counts = [sum(i == helper for i in plan.helper) for helper in range(len(plan.order))]
    shown = " + ".join(map(str, counts[:MAX_SHOWN])) + (" + ..." if len(counts) > MAX_SHOWN else "")
    interruptions = len(plan.schedule) - 2 * len(plan.helper)
    told = f", {plural(interruptions, 'interruption')}" if interruptions else ""
    return f"{plural(len(plan.helper), 'client')} on {plural(len(counts), 'helper')} ({shown}){told}"


SPLIT = Kind(
    name="split",
    summary="parallel split learning (Tirana et al.): which helper serves each client, and in which order",
    objective="makespan",
    unit="time units",
    parse=partial(json_io.load, Problem),
    methods=SUMMARIES,
    solve=_solve,
    describe_plan=describe_plan,
)
