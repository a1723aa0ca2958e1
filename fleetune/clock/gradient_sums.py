"""Sums of gradients at the end of a round: all-reduces of groups, and of weights that several segments share."""

from collections.abc import Iterable, Mapping

from fleetune.clock.between_rounds import BOTH_WAYS
from fleetune.clock.costs import nanoseconds
from fleetune.clock.limits import countable
from fleetune.clock.link_costs import frame_s_per_byte, links_of_their_own, ring_cpu_s
from fleetune.clock.timeline import AllReduce
from fleetune.contracts.fleet import Fleet, Link
from fleetune.contracts.link_frames import FRAME_BYTES, ring_slices
from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.plan import BACKWARD, REDUCE, Plan, Segment, parse_action
from fleetune.contracts.profile import Profile
from fleetune.program import program_of, steps

_Seat = tuple[str, int]
"""Lane and segment."""


class GradientSums:
    """The sums of any plan on one fleet and profile."""

    def __init__(self, fleet: Fleet, links: Mapping[tuple[str, str], Link], profile: Profile) -> None:
        """links: as messages find them in a round."""
        self._fleet, self._links, self._profile = fleet, links, profile
        self._alone = links_of_their_own(fleet)
        self._trainable = {unit.name: unit.trainable_bytes for unit in profile.units}
        self._tied = {unit.name: unit.tied for unit in profile.units if unit.tied}

    def summed_bytes(self, segment: Segment) -> int:
        """Return the bytes that the group's all-reduce sums."""
        every = sum(self._trainable[name] for name in segment.trained)  # planners ask for it by the million
        return every - self._profile.repeated_bytes(segment.trained)

    def of_groups(self, plan: Plan, ends: Mapping[tuple[int, int], int], measured: bool) -> list[AllReduce]:
        """Return the all-reduce of each group, from the end of its slowest member; none if the plan has a collector.

        ends: lane and segment -> ns at which its last backward ends.
        """
        found = []
        for (at, index), end_ns in ends.items():
            segment = plan.lanes[at].segments[index]
            if len(segment.devices) > 1 and not plan.collector:
                lasts_ns = self.ring_ns(segment, measured)
                found.append(AllReduce(at, index, end_ns, end_ns + lasts_ns, self.summed_bytes(segment)))
        return found

    def of_tied(self, plan: Plan, rows: Iterable[TimelineRow]) -> tuple[list[TimelineRow], float]:
        """Return the messages with gradients of weights that several segments of a lane share, and when all are there.

        rows: of the round without them. A device sends each to one member of every other segment that has the weight,
        one after the other but over links of their own, as soon as its own group's sum is done and what it has sent
        before has left.
        """
        if not self.shares_weights(plan):
            return [], 0.0
        segments = {lane.name: lane.segments for lane in plan.lanes}
        sums: dict[_Seat, int] = {}
        free_ns: dict[tuple[str, str], int] = {}

        def port(source: str, target: str) -> tuple[str, str]:
            return (source, target) if (source, target) in self._alone else (source, "")

        for row in rows:
            action, end_ns = parse_action(row.action), nanoseconds(row.end_s)
            if row.is_transfer:
                used = port(*row.device.split(">"))
                free_ns[used] = max(free_ns.get(used, 0), end_ns)
            elif action.letter in (BACKWARD, REDUCE):
                seat = (action.lane, action.segment)
                sums[seat] = max(sums.get(seat, 0), end_ns)
        found, last_ns = [], 0
        for own in program_of(plan, self._profile):
            for step in own.round:
                action = step.action
                if step.kind != steps.SEND or action.letter != REDUCE or step.peer == own.device:
                    continue
                link = self._links[own.device, step.peer]
                ends = (segments[action.lane][at] for at in (action.segment, action.micro_batch))
                shared = frozenset.intersection(*map(self._names, ends))
                size = sum(self._profile.tied_bytes.get(name, 0) for name in shared)
                used = port(own.device, step.peer)
                start_ns = max(free_ns.get(used, 0), sums.get((action.lane, action.segment), 0))
                holds_s = countable(f"link {own.device}>{step.peer}", size / link.bytes_per_s)
                free_ns[used] = start_ns + nanoseconds(holds_s)
                last_ns = max(last_ns, free_ns[used] + nanoseconds(link.latency_s))
                found.append(
                    TimelineRow(
                        device=f"{own.device}>{step.peer}",
                        lane=action.lane,
                        action=str(action),
                        start_s=start_ns / 1e9,
                        end_s=free_ns[used] / 1e9,
                        bytes=size,
                    )
                )
        return found, last_ns / 1e9

    def shares_weights(self, plan: Plan) -> bool:
        """Return whether two segments of a lane share a trained weight, and sum its gradients themselves."""
        if not self._profile.tied_bytes or plan.collector:
            return False
        by_lane = [[self._names(segment) for segment in lane.segments] for lane in plan.lanes]
        return any(sum(map(len, names)) > len(frozenset().union(*names)) for names in by_lane)

    def ring_ns(self, segment: Segment, measured: bool) -> int:
        """Return 2(|G|-1) · (largest latency + w / (|G| · smallest bandwidth)), as in `pipeline_arrays`.

        measured: as real devices do it: two members send to each other at the same time, a frame of each part is
        encrypted before it leaves and decrypted when it is there, and a slice that has arrived is sent on at once, so
        that a step begins before the one before it has ended.
        """
        pairs = [(a, b) for a in segment.devices for b in segment.devices if a != b]
        count, slowest = len(segment.devices), min(self._links[pair].bytes_per_s for pair in pairs)
        latency_s = max(self._links[pair].latency_s for pair in pairs)
        summed_bytes = self.summed_bytes(segment)
        part_s = summed_bytes / (count * slowest)
        countable(f"links of {', '.join(segment.devices)}", 2 * (count - 1) * (latency_s + part_s))
        if not measured:
            return nanoseconds(2 * (count - 1) * (latency_s + part_s))
        frame = min(summed_bytes / count, FRAME_BYTES)
        coding = {name: frame_s_per_byte(self._fleet.device(name)).idle for name in segment.devices}
        latency_s += frame * max(coding[a] + coding[b] for a, b in pairs)
        part_s *= BOTH_WAYS if count == 2 else 1.0
        slices = ring_slices(summed_bytes / count)
        apart_s = max(part_s, latency_s + part_s / slices)  # from one step's start to the next one's
        over_links_s = (2 * (count - 1) - 1) * apart_s + latency_s + part_s
        return nanoseconds(max(over_links_s, ring_cpu_s(self._fleet, segment.devices, summed_bytes)))

    def _names(self, segment: Segment) -> frozenset[str]:
        """Return the trained weights of a segment that several units read."""
        return frozenset(name for unit in segment.trained for name in self._tied.get(unit, ()))
