"""Dynamic pruning by the magnitudes of weights and gradients.

D2FT (Ding and others, 2025), Section III-A, `DPruning M/G`, after Sokar, Atashgahi, Pechenizkiy, Mocanu: Where to Pay
Attention in Sparse Training for Feature Selection? (NeurIPS 2022): "an importance score derived from batch gradients
and weight magnitudes". The paper does not say how the two are joined: here they are multiplied, which needs no scale.
"""

from fleetune.errors import Refused
from fleetune.solving.d2ft.case import Case, Table
from fleetune.solving.d2ft.exact import scaled
from fleetune.solving.d2ft.problem import Problem
from fleetune.solving.d2ft.pruning import pruned


def plan(case: Case, problem: Problem) -> Table:
    """The table; Refused without weight_magnitude or gradient_magnitude."""
    for key in ("weight_magnitude", "gradient_magnitude"):
        if getattr(problem, key) is None:
            raise Refused(f"{key}: method magnitude-gradient needs this key; give one number for each subnet")
    weights, gradients = scaled(problem.weight_magnitude or ()), scaled(problem.gradient_magnitude or ())
    return pruned(case, problem, [w * g for w, g in zip(weights, gradients, strict=True)])
