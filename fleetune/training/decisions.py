"""What the commit of a round decides for the rounds that follow: blocks that move, and gates that are chosen anew.

Blocks are dealt anew from the busy times of the last rounds (LoLa-DEFT). Every device hosts the whole model and a
collector holds all optimizer state, so nothing moves but the names of the units that a lane trains: a round in which no
block moves costs nothing. Lanes keep their device, their data and their share of the uplink.

A device's next latency with a block is forecast as its compute seconds by the profile, times what the device measured
over what was forecast in the last rounds, plus the upload of the block's gradients over its share of its link, times
what its uploads took over what was forecast. The best assignment has the least largest latency. It replaces the present
one only if that is shorter by MIN_GAIN, so that noise moves nothing.

A resumed training follows the logged decisions, those of rounds that it runs again included, and measures only after
them.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from fleetune.clock import Clock
from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.head_scores import HeadScores, ReportedScores, summed_scores
from fleetune.contracts.metrics import RoundMetrics, TimelineRow
from fleetune.contracts.plan import Plan
from fleetune.contracts.profile import Profile
from fleetune.errors import Infeasible, Refused, first_line
from fleetune.program.in_force import Moves, after_rounds, moved, permutes
from fleetune.training.measurements import busy_s, upload_s
from fleetune.training.task import TrainingTask

MIN_GAIN = 0.1
"""Least relative gain for which blocks move."""


class Replanner:
    """Decides after which rounds which blocks move."""

    def __init__(self, plan: Plan, fleet: Fleet, profile: Profile, logged: Mapping[int, Moves]) -> None:
        """plan: the one in force. logged: round -> decision of rounds that ran before and are run again."""
        self.plan = plan
        self._fleet, self._profile, self._clock = fleet, profile, Clock(fleet, profile)
        self._logged = dict(logged)
        self._busy_s: dict[str, list[float]] = {}
        self._upload_s: dict[str, list[float]] = {}

    def follow(self, plan: Plan) -> None:
        """Go on from another plan, with measurements of its own."""
        if plan != self.plan:
            self.plan = plan
            self._forget()

    def remember(self, logged: Mapping[int, Moves]) -> None:
        """Repeat the decisions after these rounds, and forget what was measured: they are run again."""
        self._logged.update(logged)
        self._forget()

    def observe(self, busy_s: Mapping[str, float], upload_s: Mapping[str, float] | None = None) -> None:
        """Add each device's seconds of a round: computing, and sending its gradients to the collector."""
        for measured, found in ((busy_s, self._busy_s), (upload_s or {}, self._upload_s)):
            for device, seconds in measured.items():
                found.setdefault(device, []).append(seconds)

    def _forget(self) -> None:
        self._busy_s.clear()
        self._upload_s.clear()

    def after(self, round: int) -> Moves:
        """Return what moves after a round (from 0), and make it the plan in force."""
        every = self.plan.replan_every_rounds
        if not every:
            return {}
        if round in self._logged and permutes(self.plan, self._logged[round]):
            moves = self._logged[round]
        elif (round + 1) % every:
            return {}
        else:
            moves = self._decide()
        if (round + 1) % every == 0 or moves:
            self._forget()
        self.plan = moved(self.plan, moves)
        return moves

    def _decide(self) -> Moves:
        """Return the best assignment's moves if it is worth them."""
        if any(not self._busy_s.get(lane.segments[0].devices[0]) for lane in self.plan.lanes):
            return {}
        latency_s = self.latencies_s()
        present = np.arange(len(latency_s))
        best = least_largest(latency_s)
        if latency_s[present, best].max() >= (1 - MIN_GAIN) * latency_s[present, present].max():
            return {}
        blocks = [lane.segments[0].trains for lane in self.plan.lanes]
        return {
            lane.name: blocks[block]
            for at, (lane, block) in enumerate(zip(self.plan.lanes, best, strict=True))
            if block != at
        }

    def latencies_s(self) -> np.ndarray:
        """Return [lane, block] seconds of a round; block k is what lane k trains now; infinite if memory is short."""
        blocks = [lane.segments[0].trains for lane in self.plan.lanes]
        return np.array([[self._latency_s(at, block, blocks) for block in blocks] for at in range(len(blocks))])

    def _latency_s(self, at: int, block: Sequence[str], blocks: Sequence[Sequence[str]]) -> float:
        lane = self.plan.lanes[at]
        device, collector = lane.segments[0].devices[0], self.plan.collector
        other = moved(self.plan, {lane.name: tuple(block)})
        if block != blocks[at] and self._clock.memory_bytes(other, device) > self._fleet.device(device).memory_bytes:
            return float("inf")
        pace = statistics.median(self._busy_s[device]) / self._compute_s(at, blocks[at])
        computing_s = pace * self._compute_s(at, block)
        if device == collector:
            return computing_s
        slower = 1.0
        if self._upload_s.get(device):
            slower = statistics.median(self._upload_s[device]) / self._upload_forecast_s(device, blocks[at])
        return computing_s + slower * self._upload_forecast_s(device, block)

    def _upload_forecast_s(self, device: str, block: Sequence[str]) -> float:
        """Return the forecast seconds in which a block's gradients reach the collector."""
        assert self.plan.collector is not None, "blocks are dealt anew where there is a collector"
        link = self._fleet.link(device, self.plan.collector)
        share = next((u.share for u in self.plan.links if (u.source, u.target) == (device, self.plan.collector)), 1.0)
        return link.latency_s + self._profile.trainable_bytes(block) / (link.bytes_per_s * share)

    def _compute_s(self, at: int, block: Sequence[str]) -> float:
        """Return the forecast compute seconds of a round of a lane that trains a block."""
        lane = self.plan.lanes[at]
        segment = lane.segments[0]
        (share,) = segment.shares
        forward, backward = self._clock.unit_times(share.device, share.samples)
        first = min(segment.units.index(name) for name in block)
        places, trained = (list(map(self._profile.position, names)) for names in (segment.units, block))
        once = sum(map(sum, self._clock.segment_times(share.device, share.samples, places, trained)))
        again = zip(places, self._clock.runs_again(segment, backward), strict=True)
        once += sum(forward[k] for k, runs in list(again)[first:] if runs)
        return self.plan.micro_batches_of(lane) * once


def least_largest(costs: np.ndarray) -> np.ndarray:
    """Return the column of each row in the assignment with the least largest cost, and of those the least sum.

    Where no assignment is finite, each row keeps its own column.
    """
    own = np.arange(len(costs))
    low, high, values = 0, len(np.unique(costs)) - 1, np.unique(costs)
    best = own
    while low <= high:
        middle = (low + high) // 2
        allowed = costs <= values[middle]
        rows, columns = linear_sum_assignment(~allowed)
        if np.isfinite(values[middle]) and allowed[rows, columns].all():
            within = np.where(allowed, costs, values[middle] * len(costs) + 1.0)
            best, high = linear_sum_assignment(within)[1], middle - 1
        else:
            low = middle + 1
    return np.asarray(best)


class Decisions:
    """Decides by what devices report of a round."""

    def __init__(self, task: TrainingTask, plan: Plan, again: Sequence[RoundMetrics]) -> None:
        """plan: the one in force. again: rounds that ran before and are run again, whose decisions are repeated."""
        self._task = task
        self._replanner = Replanner(plan, task.fleet, task.profile, {each.round: each.moves for each in again})
        chosen = {each.round: each.gates for each in again if each.gates}
        self._gates = GateRefresh(task.choose_gates, chosen, task.note)
        self.plan = plan
        """The one in force: the next round runs it."""

    def follow(self, plan: Plan) -> None:
        """Go on from another plan."""
        self.plan = plan
        self._replanner.follow(plan)

    def remember(self, again: Sequence[RoundMetrics]) -> None:
        """Repeat what was decided after these rounds, which are run again."""
        self._replanner.remember({each.round: each.moves for each in again})

    def added_to(
        self, metrics: RoundMetrics, ready: Mapping[str, Mapping[str, Any]], rows: Sequence[TimelineRow]
    ) -> RoundMetrics:
        """Return the metrics of a round that the plan ran with what is decided after it, which is in force from now on.

        ready: device -> its report. rows: of the round.
        """
        if self._replanner.plan.replan_every_rounds:
            busy = self._task.measured_busy(metrics.round, busy_s(rows))
            self._replanner.observe(busy, upload_s(rows, self.plan.collector))
            metrics = replace(metrics, moves=dict(self._replanner.after(metrics.round)))
            self._note_moves(metrics)
        if self.plan.refreshes_gates_in(metrics.round):
            chosen = (
                self._gates.stays(self.plan, metrics.round)
                if metrics.overflowed
                else self._gates.after(self.plan, metrics.round, ready)
            )
            metrics = replace(metrics, gates=dict(chosen))
        self.plan = after_rounds(self.plan, [metrics])
        return metrics

    def _note_moves(self, metrics: RoundMetrics) -> None:
        if metrics.moves:
            said = "; ".join(f"{lane} {units[0]} .. {units[-1]}" for lane, units in metrics.moves.items())
            self._task.note(f"round {metrics.round}: blocks are dealt anew; from the next one on train: {said}")


Operations = Mapping[str, str]
"""Subnet -> one digit per micro-batch."""


class GateRefresh:
    """Chooses gates anew while a training goes on (D2FT), by the scores of a round in which every head ran in full.

    Devices score the heads whose gradients they have; a head that a cut divides gets the sum of its parts. The choice
    is a part of the round's commit, and a resumed training follows what was logged, also of rounds that it runs again.
    """

    def __init__(
        self,
        choose: Callable[[Plan, Iterable[HeadScores]], Operations] | None,
        logged: Mapping[int, Operations],
        note: Callable[[str], None],
    ) -> None:
        """logged: round -> choice of rounds that ran before and are run again."""
        self._choose, self._known, self._note = choose, dict(logged), note

    def after(self, plan: Plan, round: int, ready: Mapping[str, Mapping[str, Any]]) -> Operations:
        """Return the operations of all subnets from the round after this one on, in which `plan` scored them.

        ready: device -> its report of the round. Where nothing can be chosen by the reports, gates stay, and a note
        says why. Refused: the task has nothing that chooses.
        """
        if round not in self._known:
            self._known[round] = self._chosen(plan, round, ready)
        return self._known[round]

    def stays(self, plan: Plan, round: int) -> Operations:
        """Return the operations of the plan, of whose subnets some have no scores as their gradients overflowed."""
        self._note(f"round {round}: gates stay as they are, since gradients overflowed in the round that was to score")
        return {gate.subnet: gate.operations for gate in plan.gates}

    def _chosen(self, plan: Plan, round: int, ready: Mapping[str, Mapping[str, Any]]) -> Operations:
        if self._choose is None:
            raise Refused("training: nothing chooses gates anew; leave refresh_gates_every_rounds out of the plan")
        before = {gate.subnet: gate.operations for gate in plan.gates}
        try:
            scores = summed_scores(
                each
                for device in sorted(ready)
                for part in ready[device].get("scores", ())
                for each in json_io.parse(ReportedScores, bytes(part), f"scores of device {device}").heads
            )
            found = self._choose(plan, scores)
        except (Infeasible, Refused) as error:
            self._note(f"round {round}: gates stay as they are: {first_line(error)}")
            return before
        changed = sum(found[name] != before.get(name) for name in found)
        said = f"{len(found)} heads were scored on its samples; {changed} have other gates from now on"
        self._note(f"round {round}: {said}")
        return found
