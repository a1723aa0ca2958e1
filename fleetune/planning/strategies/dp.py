"""dp: data parallelism; every device holds the whole model and takes its part of every micro-batch.

After Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, PVLDB 13(12), 2020
(arXiv:2006.15704). Deviation: there all shares are equal; here they are dealt so that the slowest device's measured
forward and backward is as short as can be, since devices are uneven. Ignores the all-reduce while it deals: its bytes
do not depend on the shares.
"""

from typing import ClassVar

from fleetune.contracts import wire
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.record import record
from fleetune.errors import Infeasible
from fleetune.planning.parts.plan_result import plan_of, plan_result, segment
from fleetune.planning.parts.requirements import (
    enough_samples,
    format_bytes,
    memory_shortage,
    not_profiled,
    taking_part,
)
from fleetune.planning.parts.run_costs import RunCosts, max_samples
from fleetune.planning.problem import Problem
from fleetune.solving.hpp.sample_allocation import allocate


@record
class Options:
    """Of `dp`."""

    devices: tuple[str, ...] = ()
    """Which ones; all of the fleet where none are named."""


class DataParallel:
    """Samples dealt by measured speed within memory."""

    name = "dp"
    options: ClassVar[type] = Options
    methods: ClassVar[dict[str, str]] = {}
    summary = "the whole model on every device (or option devices), samples dealt by measured speed"
    citation = (
        "Li, S. et al.: PyTorch Distributed: Experiences on Accelerating Data Parallel Training. "
        "PVLDB 13(12), 2020, 3005-3018. arXiv:2006.15704"
    )

    def supports(self, problem: Problem) -> str:
        """Any profiled fleet."""
        return not_profiled(problem)

    def plan(self, problem: Problem) -> PlanResult:
        """One segment, one share per device; exact for the slowest device's time."""
        options = wire.load(Options, problem.options, "strategy dp")
        names = taking_part(problem, options.devices)
        enough_samples(problem, names)
        costs = RunCosts(problem)
        batch, whole = problem.micro_batch_samples, (0, costs.blocks)
        for device in names:
            missing = float(costs.missing(device, 1)[whole])
            if missing > 0:
                raise memory_shortage(device, missing, problem.profile.units, samples=1, kept=1)
        most = [int(max_samples(costs, device, 1)[whole]) for device in names]
        seconds = [[float(costs.running_seconds(d, y)[-1]) for y in range(1, batch + 1)] for d in names]
        dealt = allocate(seconds, most, batch)
        if dealt is None:
            short = (batch - sum(most)) * float(costs.activation_bytes()[whole])
            raise Infeasible(
                f"micro_batch_samples is {batch}, but {', '.join(names)} together hold {sum(most)} samples of the "
                f"whole model: they lack {format_bytes(short)}; lower training.micro_batch_samples or cut with "
                "strategy pp"
            )
        shares = list(zip(names, dealt, strict=True))
        plan = plan_of(self.name, problem, [segment(problem.profile.units, shares, warmup=1)])
        return plan_result(plan, problem, costs.clock, self.citation)
