"""The paces of a training's devices, by what their profiles say; of those that become slow, the conductor is told."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from fleetune.clock import Clock
from fleetune.clock.coding import dense
from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.plan import Plan
from fleetune.contracts.record import record
from fleetune.recovery import protocol as p
from fleetune.training.measurements import busy_s
from fleetune.training.task import TrainingTask

ROUNDS = 5
"""A device's pace is the median of its last rounds: one slow round says nothing."""
SLOW, AGAIN = 2.0, 1.4
"""A device is slow from SLOW times its profile and the others' pace on, until it is below AGAIN times."""


@record
class PaceChange:
    """A device that has become slow, or is as fast as before again."""

    device: str
    pace: float
    """Its compute seconds over those of its profile."""
    others: float
    """The median pace of the other devices."""
    slow: bool

    def __str__(self) -> str:
        if not self.slow:
            return f"is as fast as the others again: it computes {self.pace:.1f} times as long as its profile says"
        return (
            f"is slow: it computes {self.pace:.1f} times as long as its profile says, the others {self.others:.1f} "
            f"times, in the last {ROUNDS} rounds"
        )


class Stragglers:
    """Compares the paces of devices. A machine that is slow as a whole has none, nor has a fleet of one device."""

    def __init__(self) -> None:
        self._forecast_s: dict[str, float] = {}
        self._paces: dict[str, deque[float]] = {}
        self._slow: set[str] = set()

    def follow(self, forecast_s: Mapping[str, float]) -> None:
        """Measure by another plan. forecast_s: device -> compute seconds of a round by its profile."""
        self._forecast_s = {device: seconds for device, seconds in forecast_s.items() if seconds > 0}
        self._paces = {device: deque(maxlen=ROUNDS) for device in self._forecast_s}
        self._slow &= self._paces.keys()

    def observe(self, busy_s: Mapping[str, float]) -> tuple[PaceChange, ...]:
        """Add the measured compute seconds of a round; return what has changed."""
        for device, forecast_s in self._forecast_s.items():
            if device in busy_s:
                self._paces[device].append(busy_s[device] / forecast_s)
        known = {device: median(paces) for device, paces in self._paces.items() if len(paces) == ROUNDS}
        found = []
        for device, pace in known.items():
            others = [known[other] for other in known if other != device]
            if not others:
                continue
            was, limit = device in self._slow, AGAIN if device in self._slow else SLOW
            now = pace > limit * max(1.0, median(others))
            if now != was:
                self._slow ^= {device}
                found.append(PaceChange(device=device, pace=pace, others=median(others), slow=now))
        return tuple(found)


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
