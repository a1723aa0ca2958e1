"""Forecast of one round of a plan on a fleet, from a profile: its duration, timeline, bytes and memory.

A round ends with its gradients; the average over lanes that follows some rounds is forecast beside it.

A plan is lowered to a task graph (`lowering`), which runs in plain Python (`event_simulation`). Planners ask for the
time of many chains of segments alone, which runs compiled (`pipeline_simulation`), by the same rules.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise, permutations
from typing import TYPE_CHECKING, NamedTuple

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
from fleetune.clock.gradient_sums import GradientSums, Seat
from fleetune.clock.limits import countable
from fleetune.clock.link_costs import lost_s_per_byte
from fleetune.clock.lowering import LoweredPlan, PassesOf, PlanLowering
from fleetune.clock.partial_passes import backward_shares, forward_shares
from fleetune.clock.partial_rounds import in_full, partial_rounds
from fleetune.clock.recompute import is_recomputed
from fleetune.clock.spread import scaled_fleet, scaled_profile
from fleetune.clock.timeline import link_bytes, row_of, sorted_rows
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import DeviceAmount, Forecast, Interval, PartialRounds, TimelineRow
from fleetune.contracts.plan import BACKWARD, FORWARD, REDUCE, Lane, Plan, Segment, Share, parse_action
from fleetune.contracts.profile import Profile
from fleetune.errors import Refused
from fleetune.program import program_of, sample_transfers
from fleetune.program.execution import carry_out

if TYPE_CHECKING:
    from fleetune.clock.pipeline_arrays import PipelineArrays

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

    def lower(self, plan: Plan, updates_ns: Mapping[str, int] | None = None) -> LoweredPlan:
        """Lower a plan to a task graph, which begins with these optimizer steps of the round before."""
        for name in plan.devices:
            self.fleet.device(name)
        return PlanLowering(plan, self.busy_fleet, self.profile, self._passes_s(plan), updates_ns or {}).lower()

    def round_s(self, plan: Plan) -> float:
        """Return the seconds of one round; cheaper than `forecast`, for comparing many plans."""
        if not plan.is_chain:
            return self._simulate(plan)[1]
        from fleetune.clock.pipeline_simulation import DEADLOCK, simulate  # numba, half a second of some starts

        orders = {
            plan.devices.index(order.device): tuple(
                (action.letter, action.micro_batch)
                for action in map(parse_action, order.actions)
                if action.letter in (FORWARD, BACKWARD)
            )
            for order in plan.order
        }
        played = simulate(self._layout(plan), orders)
        if played.round_ns == DEADLOCK:
            raise self._deadlock(plan)
        if not self.sums.shares_weights(plan):
            return played.round_ns / 1e9
        sums_ns = {(plan.lanes[0].name, p): end_ns for p, end_ns in enumerate(played.ends_ns)}
        sent = [(plan.devices[a], plan.devices[b], end_ns) for a, b, end_ns in played.sent]
        _, there_ns = self.sums.of_tied(plan, program_of(plan, self.profile), sums_ns, sent)
        return max(played.round_ns, there_ns) / 1e9

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

    def _timed(self, plan: Plan) -> _TimedRound:
        """Simulate one round, after the commit and the optimizer steps of the one before, where these are known."""
        if updates := updates_ns(plan, self.profile):
            rows, after_commit_s = self._simulate(plan, updates)
            first_ns = min(nanoseconds(row.start_s) for row in rows)
            round_s = (nanoseconds(after_commit_s) - first_ns) / 1e9
            return _TimedRound(earlier(rows, first_ns), round_s, after_commit_s + commit_s(plan, self.profile))
        if plan.is_chain:
            self._layout(plan)  # refused where it cannot be counted
        return _TimedRound(*self._simulate(plan), 0.0)

    def _simulate(self, plan: Plan, updates: Mapping[str, int] | None = None) -> tuple[tuple[TimelineRow, ...], float]:
        """Return timeline and seconds of one round of any plan, from the start of `updates`. Refused: a deadlock."""
        lowered = self.lower(plan, updates)
        trace = simulate_graph(lowered.graph)
        if trace.deadlocked:
            raise self._deadlock(plan)
        ends_ns: dict[Seat, int] = {}
        rows = []
        for number, span in trace.tasks.items():
            if number >= len(lowered.tasks):
                continue  # an optimizer step
            device, action = lowered.tasks[number]
            rows.append(row_of(device, action, span))
            if action.letter == BACKWARD:
                seat = (action.lane, action.segment)
                ends_ns[seat] = max(ends_ns.get(seat, 0), span[1])
        sent = []
        for number, span in trace.transfers.items():
            source, target, action, size, _ = lowered.transfers[number]
            rows.append(row_of(f"{source}>{target}", action, span, size))
            sent.append((source, target, span[1]))
        reduces, sums_ns = self.sums.of_groups(plan, ends_ns, measured=bool(updates))
        tied, there_ns = self.sums.of_tied(plan, lowered.program, sums_ns, sent)
        round_ns = max(trace.end_ns, there_ns, *sums_ns.values())
        return sorted_rows((*rows, *reduces, *tied), plan.devices), round_ns / 1e9

    def _deadlock(self, plan: Plan) -> Refused:
        device, position = next(iter(carry_out(program_of(plan, self.profile)).deadlocked.items()))
        return Refused(
            f"plan: the order deadlocks; {device} waits for ever at action {position + 1} of its order "
            "(`fleetune.checks` draws it)"
        )

    def _passes_s(self, plan: Plan) -> dict[PassesOf, list[tuple[float, float]]]:
        """Return the seconds of every forward and backward, which ends at the first trained unit."""
        shares = remaining_shares(plan.gates, self.profile)
        left = {
            name: gated_times(shares, self.profile, self.profile.times_of(name).gates) if shares else {}
            for name in plan.devices
        }
        found = {}
        for lane in plan.lanes:
            many = plan.micro_batches_of(lane)
            for index, segment in enumerate(lane.segments):
                for share in segment.shares:
                    if gated := left[share.device]:
                        of_each = [{unit: rows[m] for unit, rows in gated.items()} for m in range(many)]
                        both_s = [self._pass_s(segment, share, each) for each in of_each]
                    else:
                        both_s = [self._pass_s(segment, share, {})] * many
                    found[lane.name, index, share.device] = both_s
        return found

    def _pass_s(self, segment: Segment, share: Share, gated: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
        """Return the seconds of a forward and a backward. gated: unit -> shares of both that its gates leave."""
        first = min((segment.units.index(name) for name in segment.trains), default=0)
        trained, places = set(map(self._position, segment.trains)), list(map(self._position, segment.units))
        forward_s, backward_s = self.unit_times(share.device, share.samples)
        own = self.segment_times(share.device, share.samples, places, trained)
        left = [gated.get(name, (1.0, 1.0)) for name in segment.units]
        again = self.runs_again(segment, backward_s)
        back = list(zip(places, own[1], left, again, strict=True))[first:]
        return (
            sum(unit_s * there for unit_s, (there, _) in zip(own[0], left, strict=True)),
            sum(unit_s * back_share + forward_s[k] * there * runs for k, unit_s, (there, back_share), runs in back),
        )

    def _layout(self, plan: Plan) -> "PipelineArrays":
        """Return a chain as arrays; its members stand in the order of `plan.devices`. Too long: Refused."""
        from fleetune.clock.pipeline_arrays import FIRST, new_arrays

        names, (lane,) = plan.devices, plan.lanes
        for name in names:
            self.fleet.device(name)
        links = [[None if a == b else self._links[a, b] for b in names] for a in names]
        link = np.array([[(one.bytes_per_s, one.latency_s) if one else (1.0, 0.0) for one in row] for row in links])
        layout = new_arrays(len(names), len(lane.segments), link)
        layout.size[:] = len(lane.segments), plan.micro_batches
        members: list[tuple[int, int, int, int]] = []
        before = CutBytes(0, 0)
        for p, segment in enumerate(lane.segments):
            after, first = self._cut(lane, p), len(members)
            for share in segment.shares:
                forward_s, backward_s = self._pass_s(segment, share, {})
                lost_s = self._lost_s_per_byte[share.device] * share.samples
                forward_ns = nanoseconds(forward_s + lost_s * (before.output + after.output))
                backward_ns = nanoseconds(backward_s + lost_s * (before.gradient + after.gradient))
                members.append((len(members), share.samples, forward_ns, backward_ns))
            layout.stage[p] = first, segment.warmup, self.sums.summed_bytes(segment), *after
            before = after
        self._check_countable(plan, [sum(both_ns) for _, _, *both_ns in members])
        layout.stage[len(lane.segments), FIRST] = len(members)
        layout.member[:] = members
        return layout

    def _check_countable(self, plan: Plan, passes_ns: Sequence[int]) -> None:
        """Refuse a chain whose work and traffic in sequence cannot be counted, naming what takes longest.

        passes_ns: of the devices, a forward and a backward.
        """
        (lane,), many = plan.lanes, plan.micro_batches
        found = defaultdict[str, float](float)
        for device, lasts_ns in zip(plan.devices, passes_ns, strict=True):
            found[f"device {device}"] += many * lasts_ns / 1e9

        def message_s(a: str, b: str, size: float) -> float:
            return self._links[a, b].latency_s + size / self._links[a, b].bytes_per_s

        for segment in lane.segments:
            if (count := len(segment.devices)) > 1:
                part = self.sums.summed_bytes(segment) / count
                ring_s = {(a, b): message_s(a, b, part) for a, b in permutations(segment.devices, 2)}
                slowest = max(ring_s, key=ring_s.__getitem__)
                found[f"link {slowest[0]}>{slowest[1]}"] += 2 * (count - 1) * ring_s[slowest]
        for index, (low, high) in enumerate(pairwise(lane.segments)):
            there, back = self._cut(lane, index)
            for each in sample_transfers(low, high):
                for a, b, size in ((each.source, each.target, there), (each.target, each.source, back)):
                    found[f"link {a}>{b}"] += many * message_s(a, b, each.samples * size)
        countable(max(found, key=found.__getitem__), sum(found.values()))

    def _cut(self, lane: Lane, index: int) -> CutBytes:
        """Return the bytes that cross the cut after a segment; 0 after the last one."""
        if index == len(lane.segments) - 1:
            return CutBytes(0, 0)
        last = self.profile.units[self._position(lane.segments[index].units[-1])]
        return CutBytes(last.output_bytes, last.gradient_bytes)

    def _position(self, unit: str) -> int:
        if unit not in self._positions:
            raise Refused(f"plan: unit {unit!r} is not in the profile; profile the model again")
        return self._positions[unit]
