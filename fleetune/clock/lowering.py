"""The program of any plan as the tasks and transfers that `event_simulation` runs.

Covers what the compiled pipeline simulation does not: several lanes, devices in several segments, gates, compressed and
shared links, and a collector.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from fleetune.clock.coding import Coding
from fleetune.clock.costs import nanoseconds, trained_units
from fleetune.clock.event_simulation import Task, TaskGraph, Transfer, TransferEnd
from fleetune.clock.limits import countable
from fleetune.clock.link_costs import frame_s_per_byte, links_of_their_own, lost_s_per_byte, ports
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.link_frames import FRAME_BYTES
from fleetune.contracts.plan import BACKWARD, FORWARD, UPDATE, Action, LinkUse, Plan
from fleetune.contracts.profile import Profile
from fleetune.program import Step, program_of, steps

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
    coding_s: float = 0.0
    """Processor seconds that its codec takes at both ends."""


class LoweredPlan(NamedTuple):
    """A task graph, with the identity of each of its tasks, transfers and devices."""

    graph: TaskGraph
    """Optimizer steps of the round before follow the tasks below."""
    tasks: tuple[TaskKey, ...]
    transfers: tuple[TransferInfo, ...]
    devices: tuple[str, ...]
    """Names in the order of `graph.orders`."""


class PlanLowering:
    """Builds the task graph of one plan from the steps of its devices.

    `costs` are compute seconds, without the CPU cost of transfers and codecs. `updates_ns` are devices' optimizer steps
    of the round before, which everything that they do waits for; with them, messages wait for the encryption of their
    first frame and the decryption of their last one, too, and not for messages of other links where each has a rate of
    its own. Refused: an order with foreign or repeated actions.
    """

    def __init__(
        self,
        plan: Plan,
        fleet: Fleet,
        profile: Profile,
        costs: dict[PassKey, PassTimes],
        updates_ns: Mapping[str, int] | None = None,
    ) -> None:
        self.plan, self.costs, self.updates_ns = plan, costs, updates_ns or {}
        self.units = {unit.name: unit for unit in profile.units}
        self.coding, self.trainable_bytes = Coding(profile), profile.trainable_bytes
        self.program, self.trained = program_of(plan, profile), set(trained_units(plan))
        self.uses = {(use.source, use.target): use for use in plan.links}
        self.links = {(link.source, link.target): link for link in fleet.links}
        self.lost_s_per_byte = {name: lost_s_per_byte(fleet.device(name)) for name in plan.devices}
        self.frame_s_per_byte = {name: frame_s_per_byte(fleet.device(name)) for name in plan.devices if updates_ns}
        self.numbers = {name: k for k, name in enumerate(plan.devices)}
        self.alone = links_of_their_own(fleet) if updates_ns else frozenset()
        self.lanes = {lane.name: index for index, lane in enumerate(plan.lanes)}
        self.infos: list[TransferInfo] = []
        self.sends: defaultdict[TaskKey, list[int]] = defaultdict(list)
        self.feeds: defaultdict[int, list[TaskKey]] = defaultdict(list)
        self.moved_bytes: Counter[TaskKey] = Counter()
        self.coding_s: defaultdict[TaskKey, float] = defaultdict(float)
        self.orders: dict[str, list[TaskKey]] = {}

    def lower(self) -> LoweredPlan:
        """Return the plan as a task graph."""
        for own in self.program:
            runs = [step.action for step in own.round if step.kind == steps.RUN]
            self.orders[own.device] = [self._key(own.device, action) for action in runs]
        self._add_cut_transfers()
        ready = self._add_updates()
        keys = tuple(key for order in self.orders.values() for key in order)
        place = {key: k for k, key in enumerate(keys)}
        awaited = Counter(key for fed in self.feeds.values() for key in fed)
        tasks = tuple(Task(self._duration_ns(key), awaited[key], tuple(self.sends[key])) for key in keys)
        transfers = tuple(self._transfer(k, info, place) for k, info in enumerate(self.infos))
        orders = {device: [place[key] for key in order] for device, order in self.orders.items()}
        for device, lasts_ns in self.updates_ns.items():
            hands_out = device == self.plan.collector
            orders[device].insert(0, len(tasks))
            tasks = (*tasks, Task(lasts_ns, 0, ready if hands_out else ()))
            ready = () if hands_out else ready
        graph = TaskGraph(tasks, transfers, tuple(map(tuple, orders.values())), ready)
        return LoweredPlan(graph, keys, tuple(self.infos), tuple(self.orders))

    def _key(self, device: str, action: Action) -> TaskKey:
        return TaskKey(self.lanes[action.lane], action.segment, device, action.letter, action.micro_batch)

    def _add_cut_transfers(self) -> None:
        """Add the transfers across cuts: what a step sends, the first step that has received it waits for."""
        for own in self.program:
            waiting: list[Step] = []
            for step in own.round:
                if step.kind == steps.RECEIVE:
                    waiting.append(step)
                elif step.kind == steps.RUN:
                    for each in waiting:
                        self._add_cut_transfer(
                            self._key(each.peer, each.action), self._key(own.device, step.action), each
                        )
                    waiting.clear()

    def _add_cut_transfer(self, sender: TaskKey, receiver: TaskKey, step: Step) -> None:
        lane, segment, source, letter, micro_batch = sender
        last = self.units[self.plan.lanes[lane].segments[min(segment, receiver.segment)].units[-1]]
        use = self._use_of(source, receiver.device)
        size = self.coding.message_bytes(last, letter, step.end - step.first, use)
        self.sends[sender].append(len(self.infos))
        self.feeds[len(self.infos)].append(receiver)
        coded = self.coding.seconds(last, letter, step.end - step.first, use)
        both_s = coded.sender_s + coded.receiver_s
        self.infos.append(TransferInfo(source, receiver.device, lane, segment, letter, micro_batch, size, both_s))
        self.moved_bytes.update({sender: size, receiver: size})
        self.coding_s[sender] += coded.sender_s
        self.coding_s[receiver] += coded.receiver_s

    def _add_updates(self) -> tuple[int, ...]:
        """Add a collector's parameters, which all forwards of a seat wait for, and the gradients that return after its
        last backward; return the numbers of the former."""
        hub, ready = self.plan.collector, []
        for step in self.program.of(hub).round if hub else ():
            if step.kind not in (steps.HAND, steps.COLLECT) or step.peer == hub:
                continue
            lane, segment = self.lanes[step.action.lane], step.action.segment
            handed = step.kind == steps.HAND
            units = self.plan.lanes[lane].segments[segment]
            handed_out = (name for name in units.units if name in self.trained)
            size = self.trainable_bytes(handed_out if handed else units.trained)
            passes = self._passes(lane, segment, step.peer, FORWARD if handed else BACKWARD)
            if handed:
                self.feeds[len(self.infos)] = passes
                ready.append(len(self.infos))
            elif passes:
                self.sends[passes[-1]].append(len(self.infos))
            ends = (hub, step.peer) if handed else (step.peer, hub)
            self.infos.append(TransferInfo(*ends, lane, segment, UPDATE, 0, size))
        return tuple(ready)

    def _passes(self, lane: int, segment: int, device: str, letter: str) -> list[TaskKey]:
        return [k for k in self.orders[device] if (k.lane, k.segment, k.letter) == (lane, segment, letter)]

    def _duration_ns(self, key: TaskKey) -> int:
        at, index, device, letter, m = key
        cost = self.costs[PassKey(at, index, device, m)]
        seconds = cost.forward_s if letter == FORWARD else cost.backward_s
        first, end = self.plan.lanes[at].segments[index].span(device)
        per_sample = self.moved_bytes[key] / (end - first)  # bit-identical to `Clock.pipeline`
        moving_s = self.lost_s_per_byte[device] * (end - first) * per_sample
        return nanoseconds(countable(f"device {device}", seconds + moving_s + self.coding_s[key]))

    def _transfer(self, k: int, info: TransferInfo, place: dict[TaskKey, int]) -> Transfer:
        link, use = self.links[info.source, info.target], self._use_of(info.source, info.target)
        a, b = self.numbers[info.source], self.numbers[info.target]
        alone = (
            use.share != 1.0 or (info.source, info.target) in self.alone
        )  # shares of a medium have ports of their own
        held = ports(a, b, len(self.numbers), alone=alone)
        owner = f"link {info.source}>{info.target}"
        return Transfer(
            egress=held.egress,
            ingress=held.ingress,
            holds_ns=nanoseconds(countable(owner, info.bytes / (link.bytes_per_s * use.share))),
            latency_ns=nanoseconds(countable(owner, link.latency_s)),
            rank=(info.micro_batch, info.lane, *self._tie_break(info), info.segment, k),
            feeds=tuple(place[key] for key in self.feeds[k] if key in place),
            ends=tuple(self._frame(name, info.bytes) for name in (info.source, info.target) if self.frame_s_per_byte),
        )

    def _frame(self, device: str, size: int) -> TransferEnd:
        per_byte, frame = self.frame_s_per_byte[device], min(size, FRAME_BYTES)
        return TransferEnd(
            self.numbers[device], nanoseconds(frame * per_byte.idle), nanoseconds(frame * per_byte.computing)
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
