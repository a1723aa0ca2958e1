"""A plan on a fleet with a profile: how long a round takes, and all that it does, as rows people can read.

Chains of segments, which planners ask about by the million, are played compiled (`simulation`); every other plan event
by event in plain Python (`woven`, `events`), by the same rules.
"""

from fleetune.clock.events import Story, play
from fleetune.clock.gates import parts_left
from fleetune.clock.links import lost_s_per_byte
from fleetune.clock.memory import device_bytes
from fleetune.clock.pipeline import Member, Order, Pipeline, Stage
from fleetune.clock.rows import Reduced, chain_rows, link_bytes, woven_rows
from fleetune.clock.simulation import Simulation, simulate
from fleetune.clock.times import interpolate, nanoseconds
from fleetune.clock.woven import Cost, Loom, Woven
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import DeviceAmount, Forecast, TimelineRow
from fleetune.contracts.plan import BACKWARD, FORWARD, REDUCE, Lane, Plan, Segment, parse_action
from fleetune.contracts.profile import Profile
from fleetune.errors import Refused

GRAIN_S = 2.0**-40
"""Times of units are whole multiples of it, about a picosecond: their sums are exact up to two hours, and so the same
in every order and however units are joined."""


def forecast(plan: Plan, fleet: Fleet, profile: Profile) -> Forecast:
    """One round of `plan` by the exact event simulation.

    Refused: a device, unit or subnet that fleet or profile lacks, an order in which devices wait for ever. Whether the
    plan fits memories is not judged here (`fleetune.checks` does), only told.
    """
    return Clock(fleet, profile).forecast(plan)


class Clock:
    """Times plans on one fleet and profile; keeps what many plans share."""

    def __init__(self, fleet: Fleet, profile: Profile) -> None:
        self.fleet = fleet
        self.profile = profile
        self._links = {(link.source, link.target): link for link in fleet.links}
        self._lost_s_per_byte = {device.name: lost_s_per_byte(device) for device in fleet.devices}
        self._positions = {unit.name: index for index, unit in enumerate(profile.units)}
        self._times: dict[tuple[str, int], tuple[list[float], list[float]]] = {}

    def unit_times(self, device: str, samples: int) -> tuple[list[float], list[float]]:
        """Seconds of a usual forward and backward of every unit on `device` with `samples` samples, in whole GRAINs."""
        key = (device, samples)
        if key not in self._times:
            measured = self.profile.times_of(device)
            sizes = self.profile.batch_sizes
            try:
                forward, backward = (
                    [
                        grained(interpolate(sizes, row, samples) * factor)
                        for row, factor in zip(table, factors, strict=True)
                    ]
                    for table, factors in zip(
                        (measured.forward_s, measured.backward_s), measured.median_factors(), strict=True
                    )
                )
            except Refused as error:
                raise Refused(f"profile of {device}: {error}") from None
            self._times[key] = (forward, backward)
        return self._times[key]

    def pipeline(self, plan: Plan) -> Pipeline:
        """A chain in numbers; members stand in the order of `plan.devices`."""
        lane, names = plan.lanes[0], plan.devices
        for name in names:
            self.fleet.device(name)
        links = [[None if a == b else self._links[a, b] for b in names] for a in names]
        return Pipeline(
            stages=tuple(self._stage(plan, lane, index) for index in range(len(lane.segments))),
            micro_batches=plan.micro_batches,
            bandwidth_bytes_per_s=tuple(tuple(link.bytes_per_s if link else 1.0 for link in row) for row in links),
            latency_s=tuple(tuple(link.latency_s if link else 0.0 for link in row) for row in links),
        )

    def woven(self, plan: Plan) -> Woven:
        """Any plan as work of devices and links."""
        for name in plan.devices:
            self.fleet.device(name)
        names = [name for lane in plan.lanes for segment in lane.segments for name in segment.units]
        units = {name: self.profile.units[self._position(name)] for name in names}
        return Loom(plan, self.fleet, units, self._costs(plan)).weave()

    def round_s(self, plan: Plan) -> float:
        """Seconds of one round, nothing else: for comparing many plans."""
        return self._played(plan).round_ns / 1e9 if plan.is_chain else self._told(plan)[1]

    def forecast(self, plan: Plan) -> Forecast:
        """The whole of what the clock can say."""
        if plan.is_chain:
            played, lane = self._played(plan), plan.lanes[0]
            rows = chain_rows(lane, played, [self.trainable_bytes(segment) for segment in lane.segments])
            round_s = played.round_ns / 1e9
        else:
            rows, round_s = self._told(plan)
        busy_ns = dict.fromkeys(plan.devices, 0)
        for row in rows:
            if not row.is_transfer and parse_action(row.action).letter != REDUCE:
                busy_ns[row.device] += nanoseconds(row.end_s) - nanoseconds(row.start_s)
        return Forecast(
            round_s=round_s,
            rows=rows,
            busy_s=tuple(DeviceAmount(device=device, amount=ns / 1e9) for device, ns in busy_ns.items()),
            memory_bytes=tuple(DeviceAmount(device=d, amount=self.memory_bytes(plan, d)) for d in plan.devices),
            link_bytes=link_bytes(plan, rows),
        )

    def stuck(self, plan: Plan) -> dict[str, int]:
        """Devices that wait for ever by the plan's orders, and at which of their forwards and backwards."""
        if not plan.is_chain:
            woven = self.woven(plan)
            return {woven.devices[device]: at for device, at in play(woven.work).waiting.items()}
        segments = plan.lanes[0].segments
        return {segments[p].devices[place]: at for p, place, at in simulate(self.pipeline(plan)).stuck}

    def memory_bytes(self, plan: Plan, device: str) -> int:
        """Peak bytes of `device` in this plan, the runtime's own included."""
        return device_bytes(plan, device, self.profile)

    def trainable_bytes(self, segment: Segment) -> int:
        """What a group's all-reduce sums."""
        return sum(self.profile.units[self._position(name)].trainable_bytes for name in segment.trained)

    def _played(self, plan: Plan) -> Simulation:
        played = simulate(self.pipeline(plan))
        if played.stuck:
            stage, place, position = played.stuck[0]
            raise _deadlock(plan.lanes[0].segments[stage].devices[place], position)
        return played

    def _told(self, plan: Plan) -> tuple[tuple[TimelineRow, ...], float]:
        """Rows and seconds of a round of any plan."""
        woven = self.woven(plan)
        story = play(woven.work)
        for device, position in story.waiting.items():
            raise _deadlock(woven.devices[device], position)
        reduced = self._reduced(plan, woven, story)
        ends_ns = [story.end_ns, *(one.end_ns for one in reduced)]
        return woven_rows(plan, woven, story, reduced), max(ends_ns) / 1e9

    def _reduced(self, plan: Plan, woven: Woven, story: Story) -> list[Reduced]:
        """The all-reduce of each group, from the end of its slowest member; a collector makes them needless."""
        ends: dict[tuple[int, int], int] = {}
        for number, (at, index, _, letter, _) in enumerate(woven.tasks):
            if letter == BACKWARD:
                ends[at, index] = max(ends.get((at, index), 0), story.tasks[number][1])
        found = []
        for (at, index), end_ns in ends.items():
            segment = plan.lanes[at].segments[index]
            if len(segment.devices) > 1 and not plan.collector:
                found.append(Reduced(at, index, end_ns, end_ns + self._ring_ns(segment), self.trainable_bytes(segment)))
        return found

    def _ring_ns(self, segment: Segment) -> int:
        """2(|G|-1) · (largest latency + w / (|G| · smallest bandwidth)), as `layout.reduce_ns` has it."""
        links = [self._links[a, b] for a in segment.devices for b in segment.devices if a != b]
        count, slowest = len(segment.devices), min(link.bytes_per_s for link in links)
        latency_s = max(link.latency_s for link in links)
        return nanoseconds(2 * (count - 1) * (latency_s + self.trainable_bytes(segment) / (count * slowest)))

    def _costs(self, plan: Plan) -> dict[tuple[int, int, str, int], Cost]:
        """[lane, segment, device, micro-batch]; backwards end at the first unit that a segment trains."""
        left = parts_left(plan.gates, self.profile)
        costs = {}
        for at, lane in enumerate(plan.lanes):
            for index, segment in enumerate(lane.segments):
                first = min((segment.units.index(name) for name in segment.trains), default=0)
                for share in segment.shares:
                    forward, backward = self.unit_times(share.device, share.samples)
                    for m in range(plan.micro_batches):
                        parts = [left[name][m] if name in left else (1.0, 1.0) for name in segment.units]
                        at_work = list(zip([self._position(name) for name in segment.units], parts, strict=True))
                        costs[at, index, share.device, m] = Cost(
                            sum(forward[k] * part[0] for k, part in at_work),
                            sum(backward[k] * part[1] for k, part in at_work[first:]),
                        )
        return costs

    def _stage(self, plan: Plan, lane: Lane, index: int) -> Stage:
        segment = lane.segments[index]
        positions = [self._position(name) for name in segment.units]
        before, after = self._cut(lane, index - 1), self._cut(lane, index)
        members = []
        for place, share in enumerate(segment.shares):
            forward, backward = self.unit_times(share.device, share.samples)
            lost_s = self._lost_s_per_byte[share.device] * share.samples
            members.append(
                Member(
                    device=plan.devices.index(share.device),
                    samples=share.samples,
                    forward_ns=nanoseconds(sum(forward[k] for k in positions) + lost_s * (before[0] + after[0])),
                    backward_ns=nanoseconds(sum(backward[k] for k in positions) + lost_s * (before[1] + after[1])),
                    order=_given_order(plan, segment.devices[place]),
                )
            )
        return Stage(
            members=tuple(members),
            warmup=segment.warmup,
            trainable_bytes=self.trainable_bytes(segment),
            output_bytes=after[0],
            gradient_bytes=after[1],
        )

    def _cut(self, lane: Lane, index: int) -> tuple[int, int]:
        """What crosses the cut after that segment, forward and backward, per sample; nothing at both ends."""
        if index < 0 or index == len(lane.segments) - 1:
            return 0, 0
        last = self.profile.units[self._position(lane.segments[index].units[-1])]
        return last.output_bytes, last.gradient_bytes

    def _position(self, unit: str) -> int:
        if unit not in self._positions:
            raise Refused(f"plan: unit {unit!r} is not in the profile; profile the model again")
        return self._positions[unit]


def grained(seconds: float) -> float:
    """To the nearest whole multiple of GRAIN_S."""
    return round(seconds / GRAIN_S) * GRAIN_S


def _deadlock(device: str, position: int) -> Refused:
    return Refused(
        f"plan: the order deadlocks; {device} waits for ever at action {position + 1} of its order "
        "(`checks.findings` draws it)"
    )


def _given_order(plan: Plan, device: str) -> Order | None:
    """The forwards and backwards of an explicit order; all-reduce and update follow the last backward by themselves."""
    for order in plan.order:
        if order.device == device:
            actions = [parse_action(spelling) for spelling in order.actions]
            return tuple((a.letter, a.micro_batch) for a in actions if a.letter in (FORWARD, BACKWARD))
    return None
