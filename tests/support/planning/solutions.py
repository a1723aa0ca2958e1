"""Solutions of problems that any strategy may find infeasible."""

from hypothesis import HealthCheck, settings

from fleetune.contracts.plan import PlanResult
from fleetune.errors import Infeasible, Refused
from fleetune.planning import Problem, solve
from tests.support.planning.instances import scored

PROPERTY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
UNSUPPORTED = ("one device", "no unit of the model is trained", "cannot be cut in three")


def solved(strategy: str, problem: Problem) -> PlanResult | None:
    """The result; None if the strategy refuses the problem or finds it infeasible with a known sentence."""
    try:
        return solve(strategy, problem, now=lambda: 0.0)
    except Infeasible as reason:
        assert any(word in str(reason) for word in ("lacks", "lack", "need", "micro_batch_samples", "pieces", "memory"))
    except Refused as reason:
        assert any(words in str(reason) for words in UNSUPPORTED)
    return None


def ready_for(strategy: str, problem: Problem) -> Problem:
    """The problem with scores for the strategy that needs them."""
    return scored(problem) if strategy == "d2ft" else problem
