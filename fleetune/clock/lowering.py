"""Lowering of any plan to the tasks and transfers that `event_simulation` runs.

Covers what the compiled pipeline simulation does not: several lanes, devices in several segments, gates, compressed and
shared links, and a collector.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from fleetune.clock.costs import lost_s_per_byte, nanoseconds
from fleetune.clock.event_simulation import Task, TaskGraph, Transfer
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.link_codecs import wire_bytes
from fleetune.contracts.plan import BACKWARD, FORWARD, UPDATE, Lane, LinkUse, Plan, Segment, actions_of
from fleetune.contracts.profile import Unit
from fleetune.errors import Refused

_NEUTRAL = LinkUse(source="any", target="other")


class TaskKey(NamedTuple):
    """A forward or backward of one micro-batch on one device of a segment."""

    lane: int
    segment: int
    device: str
    letter: str
    micro_batch: int


class PassKey(NamedTuple):
    """One micro-batch on one device of a segment."""

    lane: int
    segment: int
    device: str
    micro_batch: int


class SegmentMember(NamedTuple):
    """One device of a segment, with the numbers of lane and segment."""

    lane: int
    segment_index: int
    segment: Segment
    device: str


class PassTimes(NamedTuple):
    """Seconds of the forward and backward of one micro-batch on one device of a segment."""

    forward_s: float
    backward_s: float


class TransferInfo(NamedTuple):
    """Identity of a transfer, for the timeline; `letter` and `micro_batch` are those of the sending task."""

    source: str
    target: str
    lane: int
    segment: int
    letter: str
    micro_batch: int
    bytes: int


class LoweredPlan(NamedTuple):
    """A task graph, with the identity of each of its tasks, transfers and devices."""

    graph: TaskGraph
    tasks: tuple[TaskKey, ...]
    transfers: tuple[TransferInfo, ...]
    devices: tuple[str, ...]
    """Names in the order of `graph.orders`."""


class PlanLowering:
    """Builds the task graph of one plan.

    `costs` are compute seconds, without the CPU cost of transfers.
    """

    def __init__(self, plan: Plan, fleet: Fleet, units: dict[str, Unit], costs: dict[PassKey, PassTimes]):
        self.plan, self.units, self.costs = plan, units, costs
        self.uses = {(use.source, use.target): use for use in plan.links}
        self.links = {(link.source, link.target): link for link in fleet.links}
        self.lost_s_per_byte = {name: lost_s_per_byte(fleet.device(name)) for name in plan.devices}
        self.numbers = {name: k for k, name in enumerate(plan.devices)}
        self.lanes = {lane.name: index for index, lane in enumerate(plan.lanes)}
        self.infos: list[TransferInfo] = []
        self.sends: dict[TaskKey, list[int]] = {}
        self.feeds: dict[int, list[TaskKey]] = {}
        self.orders = {name: self._order(name) for name in plan.devices}

    def lower(self) -> LoweredPlan:
        """Return the plan as a task graph. Refused: an order with foreign or repeated actions."""
        for at, lane in enumerate(self.plan.lanes):
            for index in range(len(lane.segments) - 1):
                self._add_cut_transfers(at, lane, index)
        ready = self._add_parameter_transfers() if self.plan.collector else ()
        if self.plan.collector:
            self._add_gradient_transfers()
        keys = tuple(key for order in self.orders.values() for key in order)
        place = {key: k for k, key in enumerate(keys)}
        awaited = Counter(key for fed in self.feeds.values() for key in fed)
        tasks = tuple(Task(self._duration_ns(key), awaited[key], tuple(self.sends.get(key, ()))) for key in keys)
        transfers = tuple(self._transfer(k, info, place) for k, info in enumerate(self.infos))
        orders = tuple(tuple(place[key] for key in order) for order in self.orders.values())
        return LoweredPlan(TaskGraph(tasks, transfers, orders, ready), keys, tuple(self.infos), tuple(self.orders))

    def _order(self, device: str) -> list[TaskKey]:
        """Return the forwards and backwards of a device in order. Refused: foreign and repeated actions."""
        keys: dict[TaskKey, None] = {}
        for action in actions_of(self.plan, device):
            if action.letter not in (FORWARD, BACKWARD):
                continue
            lane = self.lanes.get(action.lane, -1)
            key = TaskKey(lane, action.segment, device, action.letter, action.micro_batch)
            if PassKey(lane, action.segment, device, action.micro_batch) not in self.costs or key in keys:
                raise Refused(f"plan: the order of {device} has {action}, which is not its own or is there twice")
            keys[key] = None
        return list(keys)

    def _add_cut_transfers(self, at: int, lane: Lane, index: int) -> None:
        """Add both directions of the cut after a segment, wherever samples of two devices overlap."""
        low, high = lane.segments[index], lane.segments[index + 1]
        last = self.units[low.units[-1]]
        for source in low.devices:
            for target in high.devices:
                (a, b), (c, d) = low.span(source), high.span(target)
                overlap = min(b, d) - max(a, c)
                if overlap <= 0:
                    continue
                for m in range(self.plan.micro_batches):
                    sender = TaskKey(at, index, source, FORWARD, m)
                    receiver = TaskKey(at, index + 1, target, FORWARD, m)
                    self._add_transfer(sender, receiver, last.output_bytes, overlap)
                    back, front = receiver._replace(letter=BACKWARD), sender._replace(letter=BACKWARD)
                    self._add_transfer(back, front, last.gradient_bytes, overlap)

    def _add_transfer(self, sender: TaskKey, receiver: TaskKey, sample_bytes: int, samples: int) -> None:
        use = self._use_of(sender.device, receiver.device)
        size = wire_bytes(sample_bytes, samples, use.codec_of(sender.letter), use.ratio)
        lane, segment, source, letter, micro_batch = sender
        info = TransferInfo(source, receiver.device, lane, segment, letter, micro_batch, size)
        self.sends.setdefault(sender, []).append(len(self.infos))
        self.feeds[len(self.infos)] = [receiver]
        self.infos.append(info)

    def _add_parameter_transfers(self) -> tuple[int, ...]:
        """Add the transfers of parameters from the collector to all other devices; return their numbers."""
        ready = []
        for at, index, segment, device in self._members():
            size = sum(self.units[name].trainable_bytes for name in segment.units)
            if device != self.plan.collector and size:
                self.feeds[len(self.infos)] = self._passes(at, index, device, FORWARD)
                ready.append(len(self.infos))
                self.infos.append(TransferInfo(self.plan.collector, device, at, index, UPDATE, 0, size))
        return tuple(ready)

    def _add_gradient_transfers(self) -> None:
        """Add the transfers of gradients to the collector after each device's last backward."""
        for at, index, segment, device in self._members():
            size = sum(self.units[name].trainable_bytes for name in segment.trained)
            keys = self._passes(at, index, device, BACKWARD)
            if device != self.plan.collector and size and keys:
                self.sends.setdefault(keys[-1], []).append(len(self.infos))
                self.feeds[len(self.infos)] = []
                self.infos.append(TransferInfo(device, self.plan.collector, at, index, UPDATE, 0, size))

    def _passes(self, lane: int, segment: int, device: str, letter: str) -> list[TaskKey]:
        return [k for k in self.orders[device] if (k.lane, k.segment, k.letter) == (lane, segment, letter)]

    def _members(self) -> Iterator[SegmentMember]:
        for at, lane in enumerate(self.plan.lanes):
            for index, segment in enumerate(lane.segments):
                for device in segment.devices:
                    yield SegmentMember(at, index, segment, device)

    def _duration_ns(self, key: TaskKey) -> int:
        at, index, device, letter, m = key
        cost = self.costs[PassKey(at, index, device, m)]
        seconds = cost.forward_s if letter == FORWARD else cost.backward_s
        first, end = self.plan.lanes[at].segments[index].span(device)
        per_sample = self._wire_bytes_of(key) / (end - first)  # bit-identical to `Clock.pipeline`
        return nanoseconds(seconds + self.lost_s_per_byte[device] * (end - first) * per_sample)

    def _wire_bytes_of(self, key: TaskKey) -> int:
        """Return the bytes on the wire of a task's inputs and outputs, without updates."""
        lane, index, device, letter = self.plan.lanes[key.lane], key.segment, key.device, key.letter
        segment, total = lane.segments[index], 0
        for other, cut, letters in ((index - 1, index - 1, "FB"), (index + 1, index, "BF")):
            if not 0 <= other < len(lane.segments):
                continue
            last = self.units[lane.segments[cut].units[-1]]
            dense = last.output_bytes if letter == FORWARD else last.gradient_bytes
            for partner in lane.segments[other].devices:
                (a, b), (c, d) = segment.span(device), lane.segments[other].span(partner)
                overlap = max(0, min(b, d) - max(a, c))
                ends = (partner, device) if letter == letters[0] else (device, partner)
                use = self._use_of(*ends)
                total += wire_bytes(dense, overlap, use.codec_of(letter), use.ratio)
        return total

    def _transfer(self, k: int, info: TransferInfo, place: dict[TaskKey, int]) -> Transfer:
        link, use = self.links[info.source, info.target], self._use_of(info.source, info.target)
        a, b = self.numbers[info.source], self.numbers[info.target]
        shared = len(self.numbers) * (1 + a) + b  # each share of a medium is a port of its own
        return Transfer(
            egress=a if use.share == 1.0 else shared,
            ingress=b if use.share == 1.0 else shared,
            holds_ns=nanoseconds(info.bytes / (link.bytes_per_s * use.share)),
            latency_ns=nanoseconds(link.latency_s),
            rank=(info.micro_batch, info.lane, *self._tie_break(info), info.segment, k),
            feeds=tuple(place[key] for key in self.feeds[k] if key in place),
        )

    def _tie_break(self, info: TransferInfo) -> tuple[int, int, int]:
        """Return (lower of the two segments joined, sender's place, receiver's place)."""
        segments = self.plan.lanes[info.lane].segments
        if info.letter == UPDATE:
            return info.segment, 0, 0
        other = info.segment + (1 if info.letter == FORWARD else -1)
        sender, receiver = segments[info.segment].devices, segments[other].devices
        return min(info.segment, other), sender.index(info.source), receiver.index(info.target)

    def _use_of(self, source: str, target: str) -> LinkUse:
        return self.uses.get((source, target), _NEUTRAL)
