"""Dynamic pruning by the magnitude of weights.

D2FT (Ding and others, 2025), Section III-A, `DPruning M`, after Lin, Stich, Barba, Dmitriev, Jaggi: Dynamic Model
Pruning with Feedback (ICLR 2020): per subnet and not per weight. Call it anew every 16 iterations, as the paper does.
"""

from fleetune.errors import Refused
from fleetune.solving.d2ft.case import Case, Table
from fleetune.solving.d2ft.exact import scaled
from fleetune.solving.d2ft.problem import Problem
from fleetune.solving.d2ft.pruning import pruned


def plan(case: Case, problem: Problem) -> Table:
    """The table; Refused without weight_magnitude."""
    if problem.weight_magnitude is None:
        raise Refused("weight_magnitude: method magnitude needs this key; give one number for each subnet")
    return pruned(case, problem, scaled(problem.weight_magnitude))
