"""single: the whole model on the fastest device that has enough memory.

The plain way to fine-tune and the baseline of every speed-up. Uses no link and one device. Gradients of all
micro-batches are summed before the optimizer step, as in all strategies.
"""

from typing import ClassVar

from fleetune.contracts import json_io
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.record import record
from fleetune.errors import Infeasible
from fleetune.formatting import exact_size
from fleetune.planning import papers
from fleetune.planning.plan_result import plan_result, segment, single_lane_plan
from fleetune.planning.segment_costs import SegmentCosts
from fleetune.planning.strategy import Problem, participants, unprofiled_reason


@record
class Options:
    """Options of `single`."""

    device: str | None = None
    """Name of the device; None: the fastest with enough memory."""


class Single:
    """Plans for the fastest feasible device."""

    name = "single"
    options: ClassVar[type] = Options
    methods: ClassVar[dict[str, str]] = {}
    summary = "everything on the fastest device that is large enough (or on option device)"
    citation = papers.SGD

    def unsupported_reason(self, problem: Problem) -> str:
        """Names a device without measured times."""
        return unprofiled_reason(problem)

    def plan(self, problem: Problem) -> PlanResult:
        """The feasible device with the shortest round; at equal rounds the first in the fleet."""
        options = json_io.load(Options, problem.options, "strategy single")
        costs = SegmentCosts(problem)
        names = participants(problem, [options.device] if options.device is not None else [])
        missing = {d: float(costs.missing(d, problem.micro_batch_samples)[0, -1]) for d in names}
        fitting = [d for d in names if missing[d] <= 0]
        if not fitting:
            nearest = min(names, key=lambda d: missing[d])
            raise Infeasible(
                f"device {nearest} lacks {exact_size(missing[nearest])} for the whole model with "
                f"{problem.micro_batch_samples} samples"
                + (", and no other device lacks less" if len(names) > 1 else "")
                + "; lower training.micro_batch_samples or cut the model with strategy pp"
            )
        share = problem.micro_batch_samples
        plans = [
            single_lane_plan(self.name, problem, [segment(problem.profile.units, [(d, share)], warmup=1)])
            for d in fitting
        ]
        return plan_result(min(plans, key=costs.clock.round_s), problem, costs.clock, self.citation)
