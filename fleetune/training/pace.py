"""The paces of a training's devices, and what the conductor is told of them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fleetune.clock import Clock
from fleetune.clock.coding import dense
from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.plan import Plan
from fleetune.monitoring.stragglers import Stragglers
from fleetune.recovery import protocol as p
from fleetune.training.measurements import busy_s
from fleetune.training.task import TrainingTask


class PaceWatch:
    """Compares what devices measure with the forecast of the plan that they run."""

    def __init__(self, task: TrainingTask) -> None:
        self._task, self._clock = task, Clock(task.fleet, task.profile)
        self._stragglers = Stragglers()
        self._followed: Plan | None = None
        self.slow: dict[str, float] = {}
        """Stragglers -> compute seconds over those of their profiles, beside the others'."""

    def forget(self, device: str) -> None:
        """Forget the pace of a device that is lost: its next worker may be as fast as its profile."""
        self.slow.pop(device, None)

    def observe(self, plan: Plan, round: int, rows: Sequence[TimelineRow]) -> Iterator[p.Slow]:
        """Add the measured rows of a round; yield the devices that became slow, or are as fast as before again.

        None where blocks are dealt anew by measured times anyway, gates are of heads that the profile does not have,
        a lane rests, or all heads run to be scored.
        """
        known = {subnet.name for subnet in self._task.profile.subnets}
        if plan.refreshes_gates_in(round):
            return
        if plan.resting_in(round) or plan.replan_every_rounds or any(gate.subnet not in known for gate in plan.gates):
            return
        if plan != self._followed:
            self._followed = plan
            uncoded = replace(plan, links=tuple(map(dense, plan.links)))  # what devices report has no coding in it
            self._stragglers.follow(busy_s(self._clock.forecast(uncoded).rows))
        for change in self._stragglers.observe(self._task.measured_busy(round, busy_s(rows))):
            self.slow.pop(change.device, None)
            if change.slow:
                self.slow[change.device] = change.pace / max(1.0, change.others)
            yield p.Slow(device=change.device, reason=str(change))
