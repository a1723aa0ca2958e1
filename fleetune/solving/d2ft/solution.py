"""A plan of kind "d2ft": the contract's JSON, key for key."""

from typing import Literal

from fleetune.contracts.record import finite, record


@record
class Solution:
    """The operation of every subnet on every micro-batch, and what it is worth."""

    kind: Literal["d2ft"] = "d2ft"
    method: str
    feasible: bool
    """False only of the pruning baselines, which heed budgets in total but not each; `reason` has the subnet."""
    reason: str = ""
    objective: float
    """Sum of the backward scores of what is trained; of `joint` with a forward_weight: this plus forward_weight times
    forward_objective. Maximised."""
    upper_bound: float | None
    """No plan within the same budgets is worth more; None: the method does not keep to them."""
    solve_s: float
    table: tuple[tuple[int, ...], ...]
    """[subnet][micro-batch]: 1 full, 2 forward-only, 3 shortcut."""
    forward_objective: float
    """Sum of the forward scores of what is run forward only."""
    workload_variance: float
    """Over the subnets, of the share of its largest possible compute (all micro-batches full) that each uses: 0 is
    balance, and subnets pruned whole or not at all have p(1 - p), about 0.25 (Section III-B1, Table I)."""
    untrained_micro_batches: int
    """How many no subnet trains."""

    def __post_init__(self) -> None:
        finite("solution", objective=self.objective, solve_s=self.solve_s, workload_variance=self.workload_variance)
        finite("solution", forward_objective=self.forward_objective)
        if self.upper_bound is not None:
            finite("solution", upper_bound=self.upper_bound)
