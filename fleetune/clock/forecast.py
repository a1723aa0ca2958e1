"""A plan on a fleet with a profile, as the numbers of a pipeline; and what came out, as rows people can read."""

import math

from fleetune.clock.links import lost_s_per_byte
from fleetune.clock.memory import segment_bytes
from fleetune.clock.pipeline import Member, Order, Pipeline, Stage
from fleetune.clock.simulation import Simulation, simulate
from fleetune.clock.times import interpolate, nanoseconds
from fleetune.contracts.action import REDUCE, Action, parse_action
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import Lane, Plan, Segment
from fleetune.contracts.profile import Profile
from fleetune.contracts.timeline import DeviceAmount, Forecast, LinkBytes, Row
from fleetune.errors import Refused

GRAIN_S = 2.0**-40
"""Times of units are whole multiples of it, about a picosecond: their sums are exact up to two hours, and so the same
in every order and however units are joined."""


def forecast(plan: Plan, fleet: Fleet, profile: Profile) -> Forecast:
    """One round of `plan` by the exact event simulation.

    Refused: several lanes, a device or unit that fleet or profile lacks, an order in which devices wait for ever.
    Whether the plan fits memories is not judged here (`fleetune.checks` does), only told.
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
            measured = self.profile.of(device)
            sizes = self.profile.batch_sizes
            try:
                forward, backward = (
                    [
                        grained(interpolate(sizes, row, samples) * usual)
                        for row, usual in zip(table, usuals, strict=True)
                    ]
                    for table, usuals in zip((measured.forward_s, measured.backward_s), measured.usual(), strict=True)
                )
            except Refused as error:
                raise Refused(f"profile of {device}: {error}") from None
            self._times[key] = (forward, backward)
        return self._times[key]

    def pipeline(self, plan: Plan) -> Pipeline:
        """The plan in numbers; members stand in the order of `plan.devices`."""
        lane = only_lane(plan)
        names = plan.devices
        for name in names:
            self.fleet.device(name)
        links = [[None if a == b else self._links[a, b] for b in names] for a in names]
        return Pipeline(
            stages=tuple(self._stage(plan, lane, index) for index in range(len(lane.segments))),
            micro_batches=plan.micro_batches,
            bandwidth_bytes_per_s=tuple(tuple(link.bytes_per_s if link else 1.0 for link in row) for row in links),
            latency_s=tuple(tuple(link.latency_s if link else 0.0 for link in row) for row in links),
        )

    def round_s(self, plan: Plan) -> float:
        """Seconds of one round, nothing else: for comparing many plans."""
        return self._played(plan).round_ns / 1e9

    def forecast(self, plan: Plan) -> Forecast:
        """The whole of what the clock can say."""
        lane = only_lane(plan)
        played = self._played(plan)
        rows = _rows(lane, played, [self.trainable_bytes(segment) for segment in lane.segments])
        busy = dict.fromkeys(plan.devices, 0)
        for task in played.tasks:
            busy[lane.segments[task.stage].devices[task.place]] += task.end_ns - task.start_ns
        return Forecast(
            round_s=played.round_ns / 1e9,
            rows=rows,
            busy_s=tuple(DeviceAmount(device=device, amount=ns / 1e9) for device, ns in busy.items()),
            memory_bytes=tuple(
                DeviceAmount(device=share.device, amount=self.memory_bytes(plan, segment, share.device))
                for segment in lane.segments
                for share in segment.shares
            ),
            link_bytes=_link_bytes(lane, rows),
        )

    def memory_bytes(self, plan: Plan, segment: Segment, device: str) -> int:
        """Peak bytes of `device` while it runs its share of `segment`, the runtime's own included."""
        first, end = segment.span(device)
        return segment_bytes(
            (self.profile.units[self._position(name)] for name in segment.units),
            runtime_bytes=self.profile.of(device).runtime_bytes,
            optimizer_bytes_per_param_byte=self.profile.optimizer_bytes_per_param_byte,
            kept_samples=min(segment.warmup, plan.micro_batches) * (end - first),
        )

    def trainable_bytes(self, segment: Segment) -> int:
        """What a group's all-reduce sums."""
        return sum(self.profile.units[self._position(name)].trainable_bytes for name in segment.units)

    def _played(self, plan: Plan) -> Simulation:
        played = simulate(self.pipeline(plan))
        if played.stuck:
            stage, place, position = played.stuck[0]
            device = only_lane(plan).segments[stage].devices[place]
            raise Refused(
                f"plan: the order deadlocks; {device} waits for ever at action {position + 1} of its order "
                "(`checks.findings` draws it)"
            )
        return played

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


def only_lane(plan: Plan) -> Lane:
    """The one lane of a plan."""
    if len(plan.lanes) != 1:
        raise Refused(
            f"plan: it has {len(plan.lanes)} lanes ({', '.join(lane.name for lane in plan.lanes)}); "
            "only plans of one lane can be timed and run"
        )
    return plan.lanes[0]


def ring_bytes(trainable_bytes: int, members: int) -> int:
    """What each member of a ring all-reduce sends to the next one."""
    return math.ceil(2 * (members - 1) * trainable_bytes / members)


def _given_order(plan: Plan, device: str) -> Order | None:
    """The forwards and backwards of an explicit order; the all-reduce follows the last backward by itself."""
    for order in plan.order:
        if order.device == device:
            actions = [parse_action(spelling) for spelling in order.actions]
            return tuple((a.letter, a.micro_batch) for a in actions if a.letter != REDUCE)
    return None


def _rows(lane: Lane, played: Simulation, trainable_bytes: list[int]) -> tuple[Row, ...]:
    """Work, transfers and all-reduces by start time; a transfer's row spans the time it holds its ports."""

    def row(device: str, action: tuple[int, str, int], span_ns: tuple[int, int], size: int = 0) -> Row:
        spelled = str(Action(lane=lane.name, segment=action[0], letter=action[1], micro_batch=action[2]))
        start_s, end_s = span_ns[0] / 1e9, span_ns[1] / 1e9
        return Row(device=device, lane=lane.name, action=spelled, start_s=start_s, end_s=end_s, bytes=size)

    def name(seat: tuple[int, int]) -> str:
        return lane.segments[seat[0]].devices[seat[1]]

    rows = [
        row(name((t.stage, t.place)), (t.stage, t.letter, t.micro_batch), (t.start_ns, t.end_ns)) for t in played.tasks
    ]
    for t in played.transfers:
        link = f"{name(t.sender)}>{name(t.receiver)}"
        rows.append(row(link, (t.sender[0], t.letter, t.micro_batch), (t.start_ns, t.end_ns), t.bytes))
    for reduce in played.reduces:
        group = lane.segments[reduce.stage].devices
        size = ring_bytes(trainable_bytes[reduce.stage], len(group))
        rows += [row(device, (reduce.stage, REDUCE, 0), (reduce.start_ns, reduce.end_ns), size) for device in group]
    return tuple(sorted(rows, key=lambda r: (r.start_s, r.end_s, r.is_transfer)))


def _link_bytes(lane: Lane, rows: tuple[Row, ...]) -> tuple[LinkBytes, ...]:
    """Per directed link: what crosses cuts, and the ring of each group in the order of its shares."""
    after = {}
    for segment in lane.segments:
        group = segment.devices
        after.update({device: group[(place + 1) % len(group)] for place, device in enumerate(group)})
    amounts: dict[tuple[str, str], int] = {}
    for row in rows:
        if row.is_transfer:
            source, target = row.device.split(">")
        elif parse_action(row.action).letter == REDUCE:
            source, target = row.device, after[row.device]
        else:
            continue
        amounts[source, target] = amounts.get((source, target), 0) + row.bytes
    return tuple(LinkBytes(source=a, target=b, bytes=size) for (a, b), size in sorted(amounts.items()))
