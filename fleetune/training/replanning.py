"""Blocks that are dealt anew between rounds, from the busy times of the last ones (LoLa-DEFT).

Every device hosts the whole model and a collector holds all optimizer state, so nothing moves but the names of the
units that a lane trains: a round in which no block moves costs nothing. Lanes keep their device, their data and their
share of the uplink.

A device's next latency with a block is forecast as its compute seconds by the profile, times what the device measured
over what was forecast in the last rounds, plus the upload of the block's gradients over its share of its link, times
what its uploads took over what was forecast. The best assignment has the least largest latency. It replaces the present
one only if that is shorter by MIN_GAIN, so that noise moves nothing.

A decision is a part of its round's commit. A resumed training follows the logged decisions, those of rounds that it
runs again included, and measures only after them.
"""

import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from fleetune.clock import Clock
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import Plan
from fleetune.contracts.profile import Profile
from fleetune.program.in_force import Moves, moved, permutes

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
