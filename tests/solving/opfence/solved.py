"""Plans as JSON values, checked."""

from typing import Any

from fleetune.contracts import wire
from fleetune.errors import Infeasible
from fleetune.solving import document
from fleetune.solving.opfence.methods import SUMMARIES
from fleetune.solving.opfence.problem import Problem
from fleetune.solving.opfence.solve import solve
from tests.solving.opfence.contract import check

Plain = dict[str, Any]


def solved(plain: Plain, method: str, seed: int = 0, time_limit_s: float | None = None) -> Plain:
    """The plan that a method makes of a problem."""
    return document(solve(wire.load(Problem, plain, "p.json"), method=method, seed=seed, time_limit_s=time_limit_s))


def all_methods(plain: Plain) -> dict[str, Plain]:
    """The plan of every method, checked; nothing for those that find none."""
    found = {}
    for method in SUMMARIES:
        try:
            found[method] = solved(plain, method)
        except Infeasible:
            assert method in ("search", "opfence")
            continue
        check(plain, found[method])
        assert found[method]["kind"] == "opfence"
        assert found[method]["method"] == method
    return found
