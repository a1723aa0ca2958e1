"""Forecast of one round of a plan on a fleet, from a profile: its duration, timeline, bytes and memory.

A round ends with its gradients; the average over lanes that follows some rounds is forecast beside it.

Chains of segments, which planners simulate by the million, run compiled (`pipeline_simulation`). Other plans are
lowered to a task graph (`lowering`) and run in plain Python (`event_simulation`), by the same rules.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fleetune.arrays import Floats, Ints
from fleetune.clock.averaging import average_bytes, average_rows
from fleetune.clock.between_rounds import commit_s, earlier, updates_ns, with_message_waits
from fleetune.clock.costs import (
    device_bytes,
    gated_times,
    interpolate,
    interpolate_trainable,
    nanoseconds,
    remaining_shares,
)
from fleetune.clock.event_simulation import simulate_graph
from fleetune.clock.gradient_sums import GradientSums
from fleetune.clock.limits import check_countable, countable
from fleetune.clock.link_costs import lost_s_per_byte
from fleetune.clock.lowering import LoweredPlan, PassKey, PassTimes, PlanLowering
from fleetune.clock.partial_passes import backward_shares, forward_shares
from fleetune.clock.partial_rounds import in_full, partial_rounds
from fleetune.clock.pipeline import Member, Order, Pipeline, PipelineStage, PipelineTrace
from fleetune.clock.recompute import is_recomputed
from fleetune.clock.spread import scaled_fleet, scaled_profile
from fleetune.clock.timeline import backward_ends, chain_rows, graph_rows, link_bytes, sorted_rows
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import DeviceAmount, Forecast, Interval, PartialRounds, TimelineRow
from fleetune.contracts.plan import BACKWARD, FORWARD, REDUCE, Lane, Plan, Segment, parse_action
from fleetune.contracts.profile import Profile
from fleetune.errors import Refused

TIME_QUANTUM_S = 2.0**-40
"""Times of units are whole multiples of this quantum, about 1 ps. Their sums are exact up to two hours, so they do not
depend on the order of addition."""


class CutBytes(NamedTuple):
    """Bytes per sample that cross a cut, forward and backward."""

    output: int
    gradient: int


class _TimedRound(NamedTuple):
    """A simulated round."""

    rows: tuple[TimelineRow, ...]
    round_s: float
    """From the start of the first row to the last arrival."""
    period_s: float
    """From one commit to the next; 0 if unknown."""


def forecast(plan: Plan, fleet: Fleet, profile: Profile) -> Forecast:
    """Simulate one round of `plan`.

    Refused: a device, unit or subnet that fleet or profile lacks, and an order that deadlocks. Memory is reported, but
    only `fleetune.checks` compares it with budgets.
    """
    return Clock(fleet, profile).forecast(plan)


class Clock:
    """Simulates plans on one fleet and profile; caches the unit times that plans share."""

    def __init__(self, fleet: Fleet, profile: Profile) -> None:
        self.fleet = fleet
        self.profile = profile
        self.busy_fleet = with_message_waits(fleet, profile)
        """The fleet with links as messages find them in a round."""
        self._links = {(link.source, link.target): link for link in self.busy_fleet.links}
        self.sums = GradientSums(fleet, self._links, profile)
        self._lost_s_per_byte = {device.name: lost_s_per_byte(device) for device in fleet.devices}
        self._positions = {unit.name: index for index, unit in enumerate(profile.units)}
        self._times: dict[tuple[str, int], tuple[list[float], list[float]]] = {}
        self._tables: dict[tuple[str, int], Floats] = {}

    def unit_times(self, device: str, samples: int) -> tuple[list[float], list[float]]:
        """Return usual forward and backward seconds of every unit on `device`, in whole quanta.

        Fewer samples than a unit can be trained on take as long as the fewest.
        """
        key = (device, samples)
        if key not in self._times:
            forward, backward = self._table(device, np.array([samples]))
            self._times[key] = (forward[:, 0].tolist(), backward[:, 0].tolist())
        return self._times[key]

    def segment_times(
        self, device: str, samples: int, places: Sequence[int], trained: Collection[int]
    ) -> tuple[list[float], list[float]]:
        """Return forward and backward seconds of a segment's units, of what is computed of each, in whole quanta.

        places: positions of the units in the profile, in order. trained: those of the units that the segment trains;
        none for all of them.
        """
        measured = self.profile.times_of(device).partial

        def left(whole_s: list[float], shares: Iterable[float]) -> list[float]:
            return [
                whole_s[place] if share == 1 else round(whole_s[place] * share / TIME_QUANTUM_S) * TIME_QUANTUM_S
                for place, share in zip(places, shares, strict=True)
            ]

        forward_s, backward_s = self.unit_times(device, samples)
        return (
            left(forward_s, forward_shares(places, trained, measured)),
            left(backward_s, backward_shares(places, trained, measured)),
        )

    def table_s(self, device: str, most: int) -> Floats:
        """Return forward plus backward seconds, [samples - 1, unit], of 1 .. `most` samples; not to be changed.

        Fewer samples than a unit can be trained on take as long as the fewest.
        """
        key = (device, most)
        if key not in self._tables:
            forward, backward = self._table(device, np.arange(1, most + 1))
            self._tables[key] = (forward + backward).T
        return self._tables[key]

    def _table(self, device: str, samples: Ints) -> tuple[Floats, Floats]:
        """Return forward and backward seconds, each [unit, len(samples)], in whole quanta."""
        measured, sizes = self.profile.times_of(device), self.profile.batch_sizes
        found = []
        for rows, factors in zip((measured.forward_s, measured.backward_s), measured.usual_factors(), strict=True):
            times = interpolate_trainable(self.profile, np.array(rows, np.float64), samples)
            for unit, column in np.argwhere(times < 0):
                try:
                    interpolate(sizes, rows[unit], int(samples[column]))
                except Refused as error:
                    raise Refused(f"profile of {device}: {error}") from None
            countable(f"device {device}", float(times.max(initial=0.0)) * max(factors, default=1.0))
            found.append(np.rint(times * np.array(factors)[:, None] / TIME_QUANTUM_S) * TIME_QUANTUM_S)
        return found[0], found[1]

    def pipeline(self, plan: Plan) -> Pipeline:
        """Convert a chain to a Pipeline; its members stand in the order of `plan.devices`. Too long: Refused."""
        lane, names = plan.lanes[0], plan.devices
        for name in names:
            self.fleet.device(name)
        links = [[None if a == b else self._links[a, b] for b in names] for a in names]
        found = Pipeline(
            stages=tuple(self._stage(plan, lane, index) for index in range(len(lane.segments))),
            micro_batches=plan.micro_batches,
            bandwidth_bytes_per_s=tuple(tuple(link.bytes_per_s if link else 1.0 for link in row) for row in links),
            latency_s=tuple(tuple(link.latency_s if link else 0.0 for link in row) for row in links),
        )
        check_countable(found, names)
        return found

    def lower(self, plan: Plan) -> LoweredPlan:
        """Lower any plan to a task graph."""
        for name in plan.devices:
            self.fleet.device(name)
        return self._lower(plan, {})

    def round_s(self, plan: Plan) -> float:
        """Return the seconds of one round; cheaper than `forecast`, for comparing many plans."""
        if not plan.is_chain:
            return self._simulate_graph(plan)[1]
        if self.sums.shares_weights(plan):
            return self._chain_round(plan)[1]
        return self._simulate_chain(plan).round_ns / 1e9

    def forecast(self, plan: Plan) -> Forecast:
        """Simulate one round and return its timeline, totals and memory.

        Where the profile knows what lies between rounds (`between_rounds`), the round is longer than `round_s` says,
        which is what planners minimise; it can be shorter where links are shaped one by one, whose messages `round_s`
        lets wait for each other.
        """
        rows, round_s, period_s = self._timed(plan)
        busy_ns = dict.fromkeys(plan.devices, 0)
        for row in rows:
            if not row.is_transfer and parse_action(row.action).letter != REDUCE:
                busy_ns[row.device] += nanoseconds(row.end_s) - nanoseconds(row.start_s)
        return Forecast(
            round_s=round_s,
            interval=self.interval(plan, round_s),
            rows=rows,
            busy_s=tuple(DeviceAmount(device=device, amount=ns / 1e9) for device, ns in busy_ns.items()),
            memory_bytes=tuple(DeviceAmount(device=d, amount=self.memory_bytes(plan, d)) for d in plan.devices),
            link_bytes=link_bytes(plan, rows),
            average=average_rows(plan, self.busy_fleet, self.profile),
            average_every_rounds=plan.average_every_rounds,
            period_s=period_s,
            partial_rounds=tuple(
                PartialRounds(rounds=rounds, round_s=self._timed(left).round_s) for rounds, left in partial_rounds(plan)
            ),
            refresh_round_s=self._timed(in_full(plan)).round_s if plan.refresh_gates_every_rounds else 0.0,
            refresh_every_rounds=plan.refresh_gates_every_rounds,
        )

    def interval(self, plan: Plan, round_s: float) -> Interval | None:
        """Return the round's duration with all devices and links of the plan at their fastest and at their slowest.

        Passes take what nine in ten of a device's passes took, links differ by the error of their fit. The ends are
        rare, since not everything is fast or slow at once. None where nothing of this is known.
        """
        used = set(plan.devices)
        spreads = {times.device: times.spread for times in self.profile.times if times.device in used and times.spread}
        errors = [link.fit_error for link in self.fleet.links if {link.source, link.target} <= used]
        if not spreads and not any(errors):
            return None
        fast = Clock(scaled_fleet(self.fleet, -1), scaled_profile(self.profile, {d: s.low for d, s in spreads.items()}))
        slow = Clock(scaled_fleet(self.fleet, 1), scaled_profile(self.profile, {d: s.high for d, s in spreads.items()}))
        return Interval(low_s=min(round_s, fast._timed(plan).round_s), high_s=max(round_s, slow._timed(plan).round_s))

    def deadlocked(self, plan: Plan) -> dict[str, int]:
        """Return device -> position among its forwards and backwards where it waits for ever; empty if all run."""
        if not plan.is_chain:
            lowered = self.lower(plan)
            return {lowered.devices[device]: at for device, at in simulate_graph(lowered.graph).deadlocked.items()}
        segments = plan.lanes[0].segments
        return {segments[p].devices[place]: at for p, place, at in self._trace(plan).deadlocked}

    def memory_bytes(self, plan: Plan, device: str) -> int:
        """Return the peak bytes of `device` in this plan, the runtime's own included."""
        return device_bytes(plan, device, self.profile, average_bytes(plan, device, self.profile))

    def runs_again(self, segment: Segment, backward_s: Sequence[float]) -> list[bool]:
        """Return of each unit of a segment whether its forward runs again in the backward, which it then has.

        backward_s: of each unit of the profile.
        """
        if not segment.recompute:
            return [False] * len(segment.units)
        has_backward = [backward_s[self._position(name)] > 0 for name in segment.units]
        return [run and has for run, has in zip(is_recomputed(segment.units), has_backward, strict=True)]

    def _trace(self, plan: Plan) -> PipelineTrace:
        from fleetune.clock.pipeline_simulation import simulate  # numba, half a second of a start that needs none

        return simulate(self.pipeline(plan))

    def _simulate_chain(self, plan: Plan) -> PipelineTrace:
        trace = self._trace(plan)
        if trace.deadlocked:
            stage, place, position = trace.deadlocked[0]
            raise _deadlock(plan.lanes[0].segments[stage].devices[place], position)
        return trace

    def _timed(self, plan: Plan) -> _TimedRound:
        """Simulate one round, after the commit and the optimizer steps of the one before, where these are known."""
        if updates := updates_ns(plan, self.profile):
            rows, after_commit_s = self._simulate_graph(plan, updates)
            first_ns = min(nanoseconds(row.start_s) for row in rows)
            round_s = (nanoseconds(after_commit_s) - first_ns) / 1e9
            return _TimedRound(earlier(rows, first_ns), round_s, after_commit_s + commit_s(plan, self.profile))
        if not plan.is_chain:
            return _TimedRound(*self._simulate_graph(plan), 0.0)
        return _TimedRound(*self._chain_round(plan), 0.0)

    def _chain_round(self, plan: Plan) -> tuple[tuple[TimelineRow, ...], float]:
        """Return timeline and seconds of one round of a chain."""
        trace, lane = self._simulate_chain(plan), plan.lanes[0]
        rows = chain_rows(lane, trace, [self.sums.summed_bytes(segment) for segment in lane.segments])
        return self._with_tied(plan, rows, trace.round_ns / 1e9)

    def _with_tied(
        self, plan: Plan, rows: tuple[TimelineRow, ...], round_s: float
    ) -> tuple[tuple[TimelineRow, ...], float]:
        """Return timeline and seconds of a round with the sums of weights that segments share."""
        tied, there_s = self.sums.of_tied(plan, rows)
        return (sorted_rows((*rows, *tied), plan.devices) if tied else rows), max(round_s, there_s)

    def _lower(self, plan: Plan, updates: Mapping[str, int]) -> LoweredPlan:
        for name in plan.devices:
            self.fleet.device(name)
        return PlanLowering(plan, self.busy_fleet, self.profile, self._costs(plan), updates).lower()

    def _simulate_graph(
        self, plan: Plan, updates: Mapping[str, int] | None = None
    ) -> tuple[tuple[TimelineRow, ...], float]:
        """Return timeline and seconds of one round of any plan, from the start of `updates`. Refused: a deadlock."""
        lowered = self._lower(plan, updates or {})
        trace = simulate_graph(lowered.graph)
        for device, position in trace.deadlocked.items():
            name = lowered.devices[device]
            raise _deadlock(name, position - (name in (updates or {})))
        ends = backward_ends(lowered, trace)
        reduced = self.sums.of_groups(plan, ends, measured=bool(updates))
        ends_ns = [trace.end_ns, *(one.end_ns for one in reduced)]
        return self._with_tied(plan, graph_rows(plan, lowered, trace, reduced), max(ends_ns) / 1e9)

    def _costs(self, plan: Plan) -> dict[PassKey, PassTimes]:
        """Return the seconds of every pass; backward passes end at the first trained unit."""
        shares = remaining_shares(plan.gates, self.profile)
        left = {
            name: gated_times(shares, self.profile, self.profile.times_of(name).gates) if shares else {}
            for name in plan.devices
        }
        costs = {}
        for at, lane in enumerate(plan.lanes):
            for index, segment in enumerate(lane.segments):
                first = min((segment.units.index(name) for name in segment.trains), default=0)
                trained, places = set(map(self._position, segment.trains)), list(map(self._position, segment.units))
                for share in segment.shares:
                    forward, backward = self.unit_times(share.device, share.samples)
                    gated, own = left[share.device], self.segment_times(share.device, share.samples, places, trained)
                    for m in range(plan.micro_batches_of(lane)):
                        parts = [gated[name][m] if name in gated else (1.0, 1.0) for name in segment.units]
                        at_work = [(k, *part) for k, part in zip(places, parts, strict=True)]
                        again = self.runs_again(segment, backward)
                        costs[PassKey(at, index, share.device, m)] = PassTimes(
                            sum(unit_s * there for unit_s, (_, there, _) in zip(own[0], at_work, strict=True)),
                            sum(
                                unit_s * back + forward[k] * there * runs
                                for (k, there, back), unit_s, runs in list(zip(at_work, own[1], again, strict=True))[
                                    first:
                                ]
                            ),
                        )
        return costs

    def _stage(self, plan: Plan, lane: Lane, index: int) -> PipelineStage:
        segment = lane.segments[index]
        positions = [self._position(name) for name in segment.units]
        before, after = self._cut(lane, index - 1), self._cut(lane, index)
        members = []
        for place, share in enumerate(segment.shares):
            forward, backward = self.unit_times(share.device, share.samples)
            lost_s = self._lost_s_per_byte[share.device] * share.samples
            forward_s = sum(forward[k] for k in positions) + lost_s * (before.output + after.output)
            again_s = sum(
                forward[k] for k, run in zip(positions, self.runs_again(segment, backward), strict=True) if run
            )
            backward_s = sum(backward[k] for k in positions) + again_s + lost_s * (before.gradient + after.gradient)
            members.append(
                Member(
                    device=plan.devices.index(share.device),
                    samples=share.samples,
                    forward_ns=nanoseconds(forward_s),
                    backward_ns=nanoseconds(backward_s),
                    order=_given_order(plan, segment.devices[place]),
                )
            )
        return PipelineStage(
            members=tuple(members),
            warmup=segment.warmup,
            trainable_bytes=self.sums.summed_bytes(segment),
            output_bytes=after.output,
            gradient_bytes=after.gradient,
        )

    def _cut(self, lane: Lane, index: int) -> CutBytes:
        """Return the bytes that cross the cut after a segment; 0 at both ends of the lane."""
        if index < 0 or index == len(lane.segments) - 1:
            return CutBytes(0, 0)
        last = self.profile.units[self._position(lane.segments[index].units[-1])]
        return CutBytes(last.output_bytes, last.gradient_bytes)

    def _position(self, unit: str) -> int:
        if unit not in self._positions:
            raise Refused(f"plan: unit {unit!r} is not in the profile; profile the model again")
        return self._positions[unit]


def _deadlock(device: str, position: int) -> Refused:
    return Refused(
        f"plan: the order deadlocks; {device} waits for ever at action {position + 1} of its order "
        "(`fleetune.checks` draws it)"
    )


def _given_order(plan: Plan, device: str) -> Order | None:
    """Return the forwards and backwards of an explicit order; None without one. All-reduces follow implicitly."""
    for order in plan.order:
        if order.device == device:
            actions = [parse_action(spelling) for spelling in order.actions]
            return tuple((a.letter, a.micro_batch) for a in actions if a.letter in (FORWARD, BACKWARD))
    return None
