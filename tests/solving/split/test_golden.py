"""Plans once looked at, as text: whoever changes a planner reads here what became of them."""

import pytest

from fleetune.solving.split.problem import Solution
from fleetune.solving.split.solve import solve
from tests.golden import same_as_golden
from tests.solving.split.contract import check
from tests.solving.split.instances import drawn


def text(plan: Solution) -> str:
    """What it costs, then a line for each helper: its tasks as F or B of the client, with their times."""
    lines = [f"{plan.method}: makespan {plan.objective}, and no plan less than {plan.lower_bound}"]
    for i in range(len(plan.order)):
        rows = [
            f"{row.direction[0].upper()}{row.client} {row.start}-{row.end}"
            for row in plan.schedule
            if plan.helper[row.client] == i
        ]
        lines.append(f"  helper {i}: {', '.join(rows)}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("method", ["admm", "balanced-greedy", "random-fcfs"])
def test_plan(method: str) -> None:
    """8 clients on 3 helpers with little room and switch costs: the plan that was looked at."""
    problem = drawn(4, 8, 3, preemptive=True, longest=9, delay=12, link=0.1, room=1.4, switch=2)
    plan = solve(problem, method=method)
    check(problem, plan)
    same_as_golden(f"solve-split-{method}.txt", text(plan))


def test_plan_without_interruptions() -> None:
    """The same where nothing may be interrupted."""
    problem = drawn(4, 8, 3, preemptive=False, longest=9, delay=12, link=0.1, room=1.4, switch=2)
    plan = solve(problem, method="balanced-greedy")
    check(problem, plan)
    same_as_golden("solve-split-whole-balanced-greedy.txt", text(plan))
