"""The program of a plan as the tasks and transfers that `event_simulation` runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
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
from fleetune.program import Program, Step, program_of, steps

PassesOf = tuple[str, int, str]
"""A lane, the number of a segment, and a device of its group."""
_NEUTRAL = LinkUse(source="any", target="other")


class Pass(NamedTuple):
    """A forward or backward of one micro-batch on one device of a segment."""

    device: str
    action: Action


class TransferInfo(NamedTuple):
    """Identity of a transfer, for the timeline."""

    source: str
    target: str
    action: Action
    """That of the sending task."""
    bytes: int
    coding_s: float = 0.0
    """Processor seconds that its codec takes at both ends."""


class LoweredPlan(NamedTuple):
    """A task graph, with the identity of each of its tasks and transfers, and the program that it comes from."""

    graph: TaskGraph
    """Optimizer steps of the round before follow the tasks below."""
    tasks: tuple[Pass, ...]
    transfers: tuple[TransferInfo, ...]
    program: Program


class PlanLowering:
    """Builds the task graph of one plan from the steps of its devices.

    `passes_s` are compute seconds of the forward and backward of each micro-batch, without what transfers and codecs
    cost. `updates_ns` are devices' optimizer steps of the round before, which everything that they do waits for; with
    them, messages wait for the encryption of their first frame and the decryption of their last one, too, and not for
    messages of other links where each has a rate of its own. Refused: an order with foreign or repeated actions.
    """

    def __init__(
        self,
        plan: Plan,
        fleet: Fleet,
        profile: Profile,
        passes_s: Mapping[PassesOf, Sequence[tuple[float, float]]],
        updates_ns: Mapping[str, int],
    ) -> None:
        self.plan, self.passes_s, self.updates_ns = plan, passes_s, updates_ns
        self.units = {unit.name: unit for unit in profile.units}
        self.coding, self.trainable_bytes = Coding(profile), profile.trainable_bytes
        self.program, self.trained = program_of(plan, profile), set(trained_units(plan))
        self.uses = {(use.source, use.target): use for use in plan.links}
        self.links = {(link.source, link.target): link for link in fleet.links}
        self.lost_s_per_byte = {name: lost_s_per_byte(fleet.device(name)) for name in plan.devices}
        self.frame_s_per_byte = {name: frame_s_per_byte(fleet.device(name)) for name in plan.devices if updates_ns}
        self.numbers = {name: k for k, name in enumerate(plan.devices)}
        self.alone = links_of_their_own(fleet) if updates_ns else frozenset()
        self.lanes = {lane.name: (index, lane.segments) for index, lane in enumerate(plan.lanes)}
        self.infos: list[TransferInfo] = []
        self.feeds: list[list[int]] = []
        self.tasks: list[Pass] = []
        self.orders: dict[str, list[int]] = {}
        for own in self.program:
            first = len(self.tasks)
            self.tasks += [Pass(own.device, step.action) for step in own.round if step.kind == steps.RUN]
            self.orders[own.device] = list(range(first, len(self.tasks)))
        self.places: dict[tuple[str, Action], int] = {task: k for k, task in enumerate(self.tasks)}
        self.sends: list[list[int]] = [[] for _ in self.tasks]
        self.moved_bytes, self.coding_s = [0] * len(self.tasks), [0.0] * len(self.tasks)

    def lower(self) -> LoweredPlan:
        """Return the plan as a task graph."""
        self._add_cut_transfers()
        ready = self._add_updates()
        awaited = Counter(task for fed in self.feeds for task in fed)
        tasks = [Task(self._duration_ns(k), awaited[k], tuple(sent)) for k, sent in enumerate(self.sends)]
        transfers = tuple(self._transfer(k, info) for k, info in enumerate(self.infos))
        for device, lasts_ns in self.updates_ns.items():
            hands_out = device == self.plan.collector
            self.orders[device].insert(0, len(tasks))
            tasks.append(Task(lasts_ns, 0, ready if hands_out else ()))
            ready = () if hands_out else ready
        graph = TaskGraph(tuple(tasks), transfers, tuple(map(tuple, self.orders.values())), ready)
        return LoweredPlan(graph, tuple(self.tasks), tuple(self.infos), self.program)

    def _add_cut_transfers(self) -> None:
        """Add the transfers across cuts: what a step sends, the first step that has received it waits for."""
        for own in self.program:
            waiting: list[Step] = []
            receivers = iter(self.orders[own.device])
            for step in own.round:
                if step.kind == steps.RECEIVE:
                    waiting.append(step)
                elif step.kind == steps.RUN:
                    receiver = next(receivers)
                    for each in waiting:
                        self._add_cut_transfer(each, receiver)
                    waiting.clear()

    def _add_cut_transfer(self, step: Step, receiver: int) -> None:
        action, samples = step.action, step.end - step.first
        device, received = self.tasks[receiver]
        _, segments = self.lanes[action.lane]
        last = self.units[segments[min(action.segment, received.segment)].units[-1]]
        use = self._use_of(step.peer, device)
        size = self.coding.message_bytes(last, action.letter, samples, use)
        coded = self.coding.seconds(last, action.letter, samples, use)
        ends = [(receiver, coded.receiver_s)]
        if (sender := self.places.get((step.peer, action))) is not None:  # else its order leaves it out
            self.sends[sender].append(len(self.infos))
            ends.append((sender, coded.sender_s))
        for task, coding_s in ends:
            self.moved_bytes[task] += size
            self.coding_s[task] += coding_s
        self.feeds.append([receiver])
        self.infos.append(TransferInfo(step.peer, device, action, size, coded.sender_s + coded.receiver_s))

    def _add_updates(self) -> tuple[int, ...]:
        """Add a collector's parameters, which all forwards of a seat wait for, and the gradients that return after its
        last backward; return the numbers of the former."""
        hub, ready = self.plan.collector, []
        for step in self.program.of(hub).round if hub else ():
            if step.kind not in (steps.HAND, steps.COLLECT) or step.peer == hub:
                continue
            handed = step.kind == steps.HAND
            segment = self.lanes[step.action.lane][1][step.action.segment]
            handed_out = (name for name in segment.units if name in self.trained)
            size = self.trainable_bytes(handed_out if handed else segment.trained)
            passes = self._passes(step, FORWARD if handed else BACKWARD)
            if handed:
                ready.append(len(self.infos))
            elif passes:
                self.sends[passes[-1]].append(len(self.infos))
            self.feeds.append(passes if handed else [])
            ends = (hub, step.peer) if handed else (step.peer, hub)
            self.infos.append(TransferInfo(*ends, step.action, size))
        return tuple(ready)

    def _passes(self, step: Step, letter: str) -> list[int]:
        """Return the passes of the seat that a step of the collector is for."""
        own = ((k, self.tasks[k].action) for k in self.orders[step.peer])
        seat = (step.action.lane, step.action.segment, letter)
        return [k for k, action in own if (action.lane, action.segment, action.letter) == seat]

    def _duration_ns(self, k: int) -> int:
        device, action = self.tasks[k]
        forward_s, backward_s = self.passes_s[action.lane, action.segment, device][action.micro_batch]
        first, end = self.lanes[action.lane][1][action.segment].span(device)
        per_sample = self.moved_bytes[k] / (end - first)  # bit-identical to the compiled simulation
        moving_s = self.lost_s_per_byte[device] * (end - first) * per_sample
        seconds = (forward_s if action.letter == FORWARD else backward_s) + moving_s + self.coding_s[k]
        return nanoseconds(countable(f"device {device}", seconds))

    def _transfer(self, k: int, info: TransferInfo) -> Transfer:
        link, use = self.links[info.source, info.target], self._use_of(info.source, info.target)
        a, b = self.numbers[info.source], self.numbers[info.target]
        shared = use.share != 1.0  # shares of a medium have ports of their own
        held = ports(a, b, len(self.numbers), alone=shared or (info.source, info.target) in self.alone)
        owner = f"link {info.source}>{info.target}"
        return Transfer(
            egress=held.egress,
            ingress=held.ingress,
            holds_ns=nanoseconds(countable(owner, info.bytes / (link.bytes_per_s * use.share))),
            latency_ns=nanoseconds(countable(owner, link.latency_s)),
            rank=(info.action.micro_batch, *self._tie_break(info), info.action.segment, k),
            feeds=tuple(self.feeds[k]),
            ends=tuple(self._frame(name, info.bytes) for name in (info.source, info.target) if self.frame_s_per_byte),
        )

    def _frame(self, device: str, size: int) -> TransferEnd:
        per_byte, frame = self.frame_s_per_byte[device], min(size, FRAME_BYTES)
        return TransferEnd(
            self.numbers[device], nanoseconds(frame * per_byte.idle), nanoseconds(frame * per_byte.computing)
        )

    def _tie_break(self, info: TransferInfo) -> tuple[int, int, int, int]:
        """Return (lane, lower of the two segments joined, sender's place, receiver's place)."""
        lane, segments = self.lanes[info.action.lane]
        own = info.action.segment
        if info.action.letter == UPDATE:
            return lane, own, 0, 0
        other = own + (1 if info.action.letter == FORWARD else -1)
        sender, receiver = segments[own].devices, segments[other].devices
        return lane, min(own, other), sender.index(info.source), receiver.index(info.target)

    def _use_of(self, source: str, target: str) -> LinkUse:
        return self.uses.get((source, target), _NEUTRAL)
