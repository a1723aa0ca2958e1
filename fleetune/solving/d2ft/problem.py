"""The problem of kind "d2ft": scores, costs and budgets as plain numbers, proven when it is made."""

import math
from typing import Literal

import numpy as np

from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.solving.fields import Real
from fleetune.solving.proofs import Axis, at_least, table

Row = tuple[Real, ...]


@record
class Problem:
    """Choose an operation for every subnet and micro-batch. Scores and costs have any unit, each the same throughout.

    Making one proves it: Refused names the field, subnet and micro-batch of the first number that cannot be.
    """

    kind: Literal["d2ft"] = "d2ft"
    backward_scores: tuple[Row, ...]
    """[subnet][micro-batch]: what training it is worth."""
    forward_scores: tuple[Row, ...]
    """[subnet][micro-batch]: what running it forward alone is worth."""
    forward_cost: Row
    """[subnet], of a micro-batch; running it forward only costs this."""
    backward_cost: Row
    """[subnet]; training it costs this beside forward_cost."""
    full_capacity: Row
    """[subnet], for what is trained."""
    forward_capacity: Row
    """[subnet], for what is run forward only."""
    capacity: Row | None = None
    """[subnet], for both together: what `joint` heeds instead of the two above."""
    forward_weight: Real | None = None
    """Of forward scores beside backward scores, for `joint`; None: backward scores first, forward scores then."""
    weight_magnitude: Row | None = None
    """[subnet], for `magnitude` and `magnitude-gradient`."""
    gradient_magnitude: Row | None = None
    """[subnet], for `magnitude-gradient`."""

    def __post_init__(self) -> None:
        if not self.backward_scores or not self.backward_scores[0]:
            raise Refused("backward_scores: the list is empty; give at least one subnet with one micro-batch")
        subnets: Axis = ("subnet", range(len(self.backward_scores)))
        micro_batches: Axis = ("micro-batch", range(len(self.backward_scores[0])))
        if self.forward_weight is not None:
            at_least("forward_weight", self.forward_weight, 0)
        for field, weight in (("backward_scores", 1.0), ("forward_scores", max(1.0, self.forward_weight or 0.0))):
            scores = table(field, getattr(self, field), subnets, micro_batches)
            with np.errstate(over="ignore"):
                total = float(scores.sum())
            if not math.isfinite(2 * weight * total):
                raise Refused(f"{field}: their sum, weighted, is above the largest number there is; scale them down")
        for field in ("forward_cost", "backward_cost", "full_capacity", "forward_capacity"):
            table(field, getattr(self, field), subnets)
        for field in ("capacity", "weight_magnitude", "gradient_magnitude"):
            if getattr(self, field) is not None:
                table(field, getattr(self, field), subnets)
