"""Any plan as work for `events`: lanes beside each other, devices in several segments, gates, thin and shared links."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from fleetune.clock.events import Task, Transfer, Work
from fleetune.clock.links import lost_s_per_byte
from fleetune.clock.times import nanoseconds
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.link_spec import wire_bytes
from fleetune.contracts.plan import BACKWARD, FORWARD, UPDATE, Lane, LinkUse, Plan, Segment, actions_of
from fleetune.contracts.profile import Unit
from fleetune.errors import Refused

Key = tuple[int, int, str, str, int]
"""Lane, segment, device, letter, micro-batch."""
_AS_IT_IS = LinkUse(source="any", target="other")


class Cost(NamedTuple):
    """Seconds of a micro-batch's forward and backward on a seat."""

    forward_s: float
    backward_s: float


class Carried(NamedTuple):
    """What a transfer is: for the rows."""

    source: str
    target: str
    lane: int
    segment: int
    letter: str
    micro_batch: int
    bytes: int


class Woven(NamedTuple):
    """Work, and what its tasks and transfers stand for, in their order."""

    work: Work
    tasks: tuple[Key, ...]
    transfers: tuple[Carried, ...]
    devices: tuple[str, ...]
    """Of `work.orders`."""


class Loom:
    """Makes the work of one plan. Costs: [lane, segment, device, micro-batch] -> seconds, links aside."""

    def __init__(self, plan: Plan, fleet: Fleet, units: dict[str, Unit], costs: dict[tuple[int, int, str, int], Cost]):
        self.plan, self.units, self.costs = plan, units, costs
        self.uses = {(use.source, use.target): use for use in plan.links}
        self.links = {(link.source, link.target): link for link in fleet.links}
        self.lost = {name: lost_s_per_byte(fleet.device(name)) for name in plan.devices}
        self.numbers = {name: k for k, name in enumerate(plan.devices)}
        self.lanes = {lane.name: index for index, lane in enumerate(plan.lanes)}
        self.carried: list[Carried] = []
        self.sends: dict[Key, list[int]] = {}
        self.feeds: dict[int, list[Key]] = {}
        self.orders = {name: self._order(name) for name in plan.devices}

    def weave(self) -> Woven:
        """Transfers first, then the tasks that they join."""
        for at, lane in enumerate(self.plan.lanes):
            for index in range(len(lane.segments) - 1):
                self._cut(at, lane, index)
        ready = self._hand_out() if self.plan.collector else ()
        if self.plan.collector:
            self._collect()
        keys = tuple(key for order in self.orders.values() for key in order)
        place = {key: k for k, key in enumerate(keys)}
        awaited = Counter(key for fed in self.feeds.values() for key in fed)
        tasks = tuple(Task(self._lasts_ns(key), awaited[key], tuple(self.sends.get(key, ()))) for key in keys)
        transfers = tuple(self._transfer(k, carried, place) for k, carried in enumerate(self.carried))
        orders = tuple(tuple(place[key] for key in order) for order in self.orders.values())
        return Woven(Work(tasks, transfers, orders, ready), keys, tuple(self.carried), tuple(self.orders))

    def _order(self, device: str) -> list[Key]:
        """A device's forwards and backwards; refused where they are not its own, or given twice."""
        keys: dict[Key, None] = {}
        for action in actions_of(self.plan, device):
            if action.letter not in (FORWARD, BACKWARD):
                continue
            key = (self.lanes.get(action.lane, -1), action.segment, device, action.letter, action.micro_batch)
            if (*key[:3], action.micro_batch) not in self.costs or key in keys:
                raise Refused(f"plan: the order of {device} has {action}, which is not its own or is there twice")
            keys[key] = None
        return list(keys)

    def _cut(self, at: int, lane: Lane, index: int) -> None:
        """Both directions across the cut after a segment, wherever samples of two devices overlap."""
        low, high = lane.segments[index], lane.segments[index + 1]
        last = self.units[low.units[-1]]
        for source in low.devices:
            for target in high.devices:
                (a, b), (c, d) = low.span(source), high.span(target)
                overlap = min(b, d) - max(a, c)
                if overlap <= 0:
                    continue
                for m in range(self.plan.micro_batches):
                    there, back = (at, index, source, FORWARD, m), (at, index + 1, target, BACKWARD, m)
                    self._send(there, (at, index + 1, target, FORWARD, m), overlap * last.output_bytes)
                    self._send(back, (at, index, source, BACKWARD, m), overlap * last.gradient_bytes)

    def _send(self, key: Key, to: Key, dense_bytes: int) -> None:
        use = self._use(key[2], to[2])
        carried = Carried(key[2], to[2], *key[:2], *key[3:], wire_bytes(dense_bytes, use.codec, use.ratio))
        self.sends.setdefault(key, []).append(len(self.carried))
        self.feeds[len(self.carried)] = [to]
        self.carried.append(carried)

    def _hand_out(self) -> tuple[int, ...]:
        """The collector's parameters to everybody, before the first forward."""
        ready = []
        for at, index, segment, device in self._seats():
            size = sum(self.units[name].trainable_bytes for name in segment.units)
            if device != self.plan.collector and size:
                keys = [key for key in self.orders[device] if key[:2] == (at, index) and key[3] == FORWARD]
                self.feeds[len(self.carried)] = keys
                ready.append(len(self.carried))
                self.carried.append(Carried(self.plan.collector, device, at, index, UPDATE, 0, size))
        return tuple(ready)

    def _collect(self) -> None:
        """Gradients of what a seat trained to the collector, after its last backward."""
        for at, index, segment, device in self._seats():
            size = sum(self.units[name].trainable_bytes for name in segment.trained)
            mine = [key for key in self.orders[device] if key[:2] == (at, index) and key[3] == BACKWARD]
            if device != self.plan.collector and size and mine:
                self.sends.setdefault(mine[-1], []).append(len(self.carried))
                self.feeds[len(self.carried)] = []
                self.carried.append(Carried(device, self.plan.collector, at, index, UPDATE, 0, size))

    def _seats(self) -> Iterator[tuple[int, int, Segment, str]]:
        for at, lane in enumerate(self.plan.lanes):
            for index, segment in enumerate(lane.segments):
                for device in segment.devices:
                    yield at, index, segment, device

    def _lasts_ns(self, key: Key) -> int:
        at, index, device, letter, m = key
        cost = self.costs[at, index, device, m]
        seconds = cost.forward_s if letter == FORWARD else cost.backward_s
        first, end = self.plan.lanes[at].segments[index].span(device)
        per_sample = self._moved_bytes(key) / (end - first)  # in the order in which `Clock` counts chains: no ulp apart
        return nanoseconds(seconds + self.lost[device] * (end - first) * per_sample)

    def _moved_bytes(self, key: Key) -> int:
        """What a task's inputs and outputs are on the wire, updates aside."""
        lane, index, device, letter = self.plan.lanes[key[0]], *key[1:4]
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
                use = self._use(*ends)
                total += wire_bytes(overlap * dense, use.codec, use.ratio)
        return total

    def _transfer(self, k: int, carried: Carried, place: dict[Key, int]) -> Transfer:
        link, use = self.links[carried.source, carried.target], self._use(carried.source, carried.target)
        a, b = self.numbers[carried.source], self.numbers[carried.target]
        shared = len(self.numbers) * (1 + a) + b  # a share of a medium is a port of its own
        return Transfer(
            egress=a if use.share == 1.0 else shared,
            ingress=b if use.share == 1.0 else shared,
            holds_ns=nanoseconds(carried.bytes / (link.bytes_per_s * use.share)),
            latency_ns=nanoseconds(link.latency_s),
            rank=(carried.micro_batch, carried.lane, *self._joined(carried), carried.segment, k),
            feeds=tuple(place[key] for key in self.feeds[k] if key in place),
        )

    def _joined(self, carried: Carried) -> tuple[int, int, int]:
        """Lower of the two segments joined, sender's place, receiver's place."""
        segments = self.plan.lanes[carried.lane].segments
        if carried.letter == UPDATE:
            return carried.segment, 0, 0
        other = carried.segment + (1 if carried.letter == FORWARD else -1)
        sender, receiver = segments[carried.segment].devices, segments[other].devices
        return min(carried.segment, other), sender.index(carried.source), receiver.index(carried.target)

    def _use(self, source: str, target: str) -> LinkUse:
        return self.uses.get((source, target), _AS_IT_IS)
