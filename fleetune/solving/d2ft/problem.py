"""Problem and solution of kind "d2ft", as in JSON: scores, costs and budgets, and a table of operations."""

import math
from typing import Literal

import numpy as np

from fleetune.contracts.record import finite, record
from fleetune.errors import Refused
from fleetune.solving.validation import Axis, Real, validate_range, validate_table

Numbers = tuple[Real, ...]


@record
class Problem:
    """Choose an operation for every subnet and micro-batch. Scores have one unit throughout, and so do costs.

    Construction validates it; Refused names the field, subnet and micro-batch of the first invalid number.
    """

    kind: Literal["d2ft"] = "d2ft"
    backward_scores: tuple[Numbers, ...]
    """[subnet][micro-batch], value of training it."""
    forward_scores: tuple[Numbers, ...]
    """[subnet][micro-batch], value of running it forward only."""
    forward_cost: Numbers
    """[subnet], cost of running a micro-batch forward only."""
    backward_cost: Numbers
    """[subnet], additional cost of training a micro-batch."""
    full_capacity: Numbers
    """[subnet], for training."""
    forward_capacity: Numbers
    """[subnet], for running forward only."""
    capacity: Numbers | None = None
    """[subnet], for both together; `joint` uses it in place of the two above."""
    forward_weight: Real | None = None
    """Weight of forward scores relative to backward scores, for `joint`; None: lexicographic, backward scores first."""
    weight_magnitude: Numbers | None = None
    """[subnet], for `magnitude` and `magnitude-gradient`."""
    gradient_magnitude: Numbers | None = None
    """[subnet], for `magnitude-gradient`."""

    def __post_init__(self) -> None:
        if not self.backward_scores or not self.backward_scores[0]:
            raise Refused("backward_scores: the list is empty; give at least one subnet with one micro-batch")
        subnets: Axis = ("subnet", range(len(self.backward_scores)))
        micro_batches: Axis = ("micro-batch", range(len(self.backward_scores[0])))
        if self.forward_weight is not None:
            validate_range("forward_weight", self.forward_weight, 0)
        for field, weight in (("backward_scores", 1.0), ("forward_scores", max(1.0, self.forward_weight or 0.0))):
            scores = validate_table(field, getattr(self, field), subnets, micro_batches)
            with np.errstate(over="ignore"):
                total = float(scores.sum())
            if not math.isfinite(2 * weight * total):
                raise Refused(f"{field}: their sum, weighted, is above the largest number there is; scale them down")
        for field in ("forward_cost", "backward_cost", "full_capacity", "forward_capacity"):
            validate_table(field, getattr(self, field), subnets)
        for field in ("capacity", "weight_magnitude", "gradient_magnitude"):
            if getattr(self, field) is not None:
                validate_table(field, getattr(self, field), subnets)


@record
class Solution:
    """The table of operations and its value."""

    kind: Literal["d2ft"] = "d2ft"
    method: str
    feasible: bool
    """False only for the pruning baselines, which keep the total budget but not each; `reason` names the subnet."""
    reason: str = ""
    objective: float
    """Sum of the backward scores of trained micro-batches; for `joint` with a forward_weight also forward_weight
    times forward_objective. Maximised."""
    upper_bound: float | None
    """No plan within the same budgets has a larger objective; None: the method does not keep to them."""
    solve_s: float
    table: tuple[tuple[int, ...], ...]
    """[subnet][micro-batch]: 1 full, 2 forward-only, 3 shortcut."""
    forward_objective: float
    """Sum of the forward scores of forward-only micro-batches."""
    workload_variance: float
    """Variance over subnets of the used share of their largest compute (all micro-batches full). 0 is balance;
    subnets pruned whole or not at all have p(1 - p), about 0.25 (Section III-B1, Table I)."""
    untrained_micro_batches: int
    """Micro-batches that no subnet trains."""

    def __post_init__(self) -> None:
        finite("solution", objective=self.objective, solve_s=self.solve_s, workload_variance=self.workload_variance)
        finite("solution", forward_objective=self.forward_objective)
        if self.upper_bound is not None:
            finite("solution", upper_bound=self.upper_bound)
