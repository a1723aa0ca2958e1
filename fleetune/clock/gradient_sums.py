"""Sums of gradients at the end of a round: all-reduces of groups, and of weights that several segments share."""

import math
from collections.abc import Iterable, Mapping

from fleetune.clock.between_rounds import BOTH_WAYS
from fleetune.clock.costs import nanoseconds
from fleetune.clock.limits import countable
from fleetune.clock.link_costs import frame_s_per_byte, links_of_their_own, ring_cpu_s
from fleetune.clock.timeline import row_of
from fleetune.contracts.fleet import Fleet, Link
from fleetune.contracts.link_frames import FRAME_BYTES, ring_slices
from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.plan import REDUCE, Action, Plan, Segment
from fleetune.contracts.profile import Profile
from fleetune.program import Program, steps

Seat = tuple[str, int]
"""Lane and segment."""
Sent = tuple[str, str, int]
"""Sender and receiver of messages, and the ns at which they have left."""


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

    def of_groups(
        self, plan: Plan, ends_ns: Mapping[Seat, int], measured: bool
    ) -> tuple[list[TimelineRow], dict[Seat, int]]:
        """Return the all-reduce of each group, from the end of its slowest member, and when each seat's gradients are
        there; a collector's plan has none. A row has the bytes that a member sends to the next one.

        ends_ns: at which the last backward of a seat ends.
        """
        found, sums_ns = [], dict(ends_ns)
        segments = {lane.name: lane.segments for lane in plan.lanes}
        for (lane, index), end_ns in ends_ns.items():
            segment = segments[lane][index]
            count = len(segment.devices)
            if count > 1 and not plan.collector:
                sums_ns[lane, index] = end_ns + self.ring_ns(segment, measured)
                size = math.ceil(2 * (count - 1) * self.summed_bytes(segment) / count)
                action = Action(lane=lane, segment=index, letter=REDUCE, micro_batch=0)
                found += [row_of(name, action, (end_ns, sums_ns[lane, index]), size) for name in segment.devices]
        return found, sums_ns

    def of_tied(
        self, plan: Plan, program: Program, sums_ns: Mapping[Seat, int], sent: Iterable[Sent]
    ) -> tuple[list[TimelineRow], int]:
        """Return the messages with gradients of weights that several segments of a lane share, and when all are there.

        sums_ns: at which the gradients of a seat are there. sent: what devices have sent before. A device sends each
        weight to one member of every other segment that has it, one after the other but over links of their own, as
        soon as its own group's sum is done and what it has sent before has left.
        """
        if not self.shares_weights(plan):
            return [], 0
        segments = {lane.name: lane.segments for lane in plan.lanes}
        free_ns: dict[tuple[str, str], int] = {}

        def port(source: str, target: str) -> tuple[str, str]:
            return (source, target) if (source, target) in self._alone else (source, "")

        for source, target, end_ns in sent:
            used = port(source, target)
            free_ns[used] = max(free_ns.get(used, 0), end_ns)
        found, last_ns = [], 0
        for own in program:
            for step in own.round:
                action = step.action
                if step.kind != steps.SEND or action.letter != REDUCE or step.peer == own.device:
                    continue
                link = self._links[own.device, step.peer]
                ends = (segments[action.lane][at] for at in (action.segment, action.micro_batch))
                shared = frozenset.intersection(*map(self._names, ends))
                size = sum(self._profile.tied_bytes.get(name, 0) for name in shared)
                used = port(own.device, step.peer)
                start_ns = max(free_ns.get(used, 0), sums_ns[action.lane, action.segment])
                name = f"{own.device}>{step.peer}"
                free_ns[used] = start_ns + nanoseconds(countable(f"link {name}", size / link.bytes_per_s))
                last_ns = max(last_ns, free_ns[used] + nanoseconds(link.latency_s))
                found.append(row_of(name, action, (start_ns, free_ns[used]), size))
        return found, last_ns

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
