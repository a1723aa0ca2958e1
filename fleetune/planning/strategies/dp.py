"""dp: data parallelism; every device holds the whole model and processes a share of every micro-batch.

After Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, PVLDB 13(12), 2020
(arXiv:2006.15704). Deviation: shares are not equal but minimise the slowest device's measured forward and backward
time, since devices are uneven. The allocation ignores the all-reduce, whose bytes do not depend on the shares.
"""

from typing import ClassVar

from fleetune.contracts import json_io
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import fewest_samples
from fleetune.contracts.record import record
from fleetune.errors import Infeasible
from fleetune.formatting import exact_size
from fleetune.planning import papers
from fleetune.planning.plan_result import plan_result, segment, single_lane_plan
from fleetune.planning.segment_costs import SegmentCosts
from fleetune.planning.strategy import (
    Problem,
    memory_shortage,
    participants,
    require_samples,
    unprofiled_reason,
)
from fleetune.solving.hpp.sample_allocation import allocate


@record
class Options:
    """Options of `dp`."""

    devices: tuple[str, ...] = ()
    """Names of the devices to use; empty: the whole fleet."""


class DataParallel:
    """Allocates samples by measured speed within memory."""

    name = "dp"
    options: ClassVar[type] = Options
    methods: ClassVar[dict[str, str]] = {}
    summary = "the whole model on every device (or option devices), samples allocated by measured speed"
    citation = papers.DATA_PARALLEL

    def unsupported_reason(self, problem: Problem) -> str:
        """Names a device without measured times."""
        return unprofiled_reason(problem)

    def plan(self, problem: Problem) -> PlanResult:
        """One segment with a share per device; the slowest device's compute time is minimal."""
        options = json_io.load(Options, problem.options, "strategy dp")
        names = participants(problem, options.devices)
        least = fewest_samples(problem.profile.units)
        require_samples(problem, names, least)
        costs = SegmentCosts(problem)
        batch, whole = problem.micro_batch_samples, (0, costs.blocks)
        for device in names:
            missing = float(costs.missing(device, least, len(names))[whole])
            if missing > 0:
                raise memory_shortage(device, missing, problem.profile.units, samples=least, kept=1)
        capacities = [int(costs.max_samples(device, 1, len(names))[whole]) for device in names]
        seconds = [[float(costs.running_seconds(d, y)[-1]) for y in range(1, batch + 1)] for d in names]
        allocation = allocate(seconds, capacities, batch, least)
        if allocation is None:
            held = sum(capacities)
            short = (batch - held) * float(costs.bytes.activations(*whole))
            raise Infeasible(
                f"micro_batch_samples is {batch}, but {', '.join(names)} together hold {held} samples of the "
                f"whole model: they lack {exact_size(short)}; lower training.micro_batch_samples or use strategy pp"
            )
        shares = list(zip(names, allocation, strict=True))
        plan = single_lane_plan(self.name, problem, [segment(problem.profile.units, shares, warmup=1)])
        return plan_result(plan, problem, costs.clock, self.citation)
