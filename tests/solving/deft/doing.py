"""Solving as a user does: JSON values in, JSON values out."""

from typing import Any

from fleetune.contracts import wire
from fleetune.solving.api import document
from fleetune.solving.deft.problem import Problem
from fleetune.solving.deft.solve import solve
from tests.solving.deft.contract import check


def solved(problem: dict[str, Any], method: str = "bisection") -> dict[str, Any]:
    """A plan that keeps the contract."""
    plan = document(solve(wire.load(Problem, problem, "p.json"), method=method))
    check(problem, plan)
    return plan
