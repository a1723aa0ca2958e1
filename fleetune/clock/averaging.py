"""What an average over lanes takes: its time by the event simulation, its bytes, and the memory of its parts.

The exchange is that of `fleetune.program.steps`, part by part. All devices begin together, since a round has just
ended; sums take no time, links do. Running statistics of batch norms, a fraction of a percent, are left out.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fleetune.clock.costs import nanoseconds, trained_units
from fleetune.clock.event_simulation import Task, TaskGraph, Transfer, simulate_graph
from fleetune.clock.link_costs import links_of_their_own, ports
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import Forecast, TimelineRow
from fleetune.contracts.plan import AVERAGE, LinkUse, Plan
from fleetune.contracts.profile import Profile
from fleetune.errors import Refused
from fleetune.program import Program, Step, program_of, seats_of, steps
from fleetune.program.lower import averaging_device
from fleetune.program.steps import PART_BYTES, PARTS_ON_THE_WAY, average_steps

MOST_PARTS = 64
"""Most parts that are simulated; a larger model's parts are taken as larger, which hardly changes the time."""
MOST = 0.5
"""Share of the time above which a plan's averages are pointed out."""


def average_rows(plan: Plan, fleet: Fleet, profile: Profile) -> tuple[TimelineRow, ...]:
    """Return the transfers of one average, from its start; empty for a plan without averages.

    A row per link, lane and segment spans all parts, as workers report it.
    """
    if not plan.average_every_rounds:
        return ()
    return _Exchange(plan, fleet, profile, program_of(plan, profile)).rows()


def describe_averages(forecast: Forecast) -> str:
    """Return that averages over lanes take most of the time, and what would help; empty where they do not."""
    every = forecast.average_every_rounds
    share = forecast.average_s / (forecast.mean_round_s * every) if forecast.mean_round_s and every else 0.0
    if share <= MOST:
        return ""
    return (
        f"by its forecast this plan spends {share:.0%} of the time on averages: {forecast.average_s:.3g} s after every "
        f"{forecast.average_every_rounds} rounds of {forecast.round_s:.3g} s; strategy.options.average_every_rounds "
        "sets how often, and adapters (model.lora) or smaller models have less to send"
    )


def average_bytes(plan: Plan, device: str, profile: Profile) -> int:
    """Return the most bytes that a device holds for the parts of an average that are on their way."""
    if not plan.average_every_rounds:
        return 0
    hub = averaging_device(plan)
    kept = PARTS_ON_THE_WAY * PART_BYTES

    def most(names: Iterable[str]) -> int:
        return min(kept, sum(profile.unit(name).trainable_bytes for name in names))

    crossing = [seat for seat in seats_of(plan) if seat.device != hub and device in (hub, seat.device)]
    there_and_back = sum(2 * most(seat.segment.units) for seat in crossing)  # what is sent is encrypted as a copy
    sums = most(unit.name for unit in profile.units) if device == hub else 0
    return math.ceil((there_and_back + sums) * (1 + profile.optimizer_bytes_per_param_byte))


class _Exchange:
    """Tasks without duration, one per step and part, and the transfers between them."""

    def __init__(self, plan: Plan, fleet: Fleet, profile: Profile, program: Program) -> None:
        self.plan, self.program = plan, program
        self.state = 1 + profile.optimizer_bytes_per_param_byte
        self.links = {(link.source, link.target): link for link in fleet.links}
        self.uses = {(use.source, use.target): use for use in plan.links}
        self.numbers = {name: k for k, name in enumerate(plan.devices)}
        self.alone = links_of_their_own(fleet)
        total = profile.trainable_bytes(unit.name for unit in profile.units)
        self.part_bytes = max(PART_BYTES, -(-total // MOST_PARTS))
        self.parts = max(1, -(-total // self.part_bytes))
        self.trained = set(trained_units(plan))
        self.spans = _spans(profile)

    def rows(self) -> tuple[TimelineRow, ...]:
        """Simulate; return the rows."""
        tasks: list[list[int]] = []
        awaits: list[int] = []
        orders: list[tuple[int, ...]] = []
        sends: dict[tuple[str, int, Step], int] = {}
        awaiting: dict[tuple[str, int, Step], int] = {}
        for own in self.program:
            first = len(tasks)
            for part, step in average_steps(own.average, self.parts):
                if step.peer == own.device or not self._size(part, step):
                    continue
                (sends if step.kind in steps.OUTGOING else awaiting)[own.device, part, step] = len(tasks)
                tasks.append([])
                awaits.append(0 if step.kind in steps.OUTGOING else 1)
            orders.append(tuple(range(first, len(tasks))))
        transfers: list[Transfer] = []
        named: list[tuple[str, int, Step]] = []
        for (device, part, step), task in sends.items():
            there = replace(step, kind=steps.OTHER_END[step.kind], peers=(device,))
            tasks[task].append(len(transfers))
            transfers.append(self._transfer(device, part, step, awaiting[step.peer, part, there]))
            named.append((device, part, step))
        made = tuple(Task(0, count, tuple(sent)) for count, sent in zip(awaits, tasks, strict=True))
        trace = simulate_graph(TaskGraph(made, tuple(transfers), tuple(orders)))
        if trace.deadlocked:
            raise Refused("plan: its average deadlocks, which is a fault of the program")
        return self._joined(named, trace.transfers)

    def _joined(
        self, named: Sequence[tuple[str, int, Step]], spans: Mapping[int, tuple[int, int]]
    ) -> tuple[TimelineRow, ...]:
        found: dict[tuple[str, str], TimelineRow] = {}
        for number, (device, part, step) in enumerate(named):
            start_ns, end_ns = spans[number]
            end_ns += nanoseconds(self.links[device, step.peer].latency_s)
            row = TimelineRow(
                device=f"{device}>{step.peer}",
                lane=step.action.lane,
                action=str(step.action),
                start_s=start_ns / 1e9,
                end_s=end_ns / 1e9,
                bytes=self._size(part, step),
            )
            before = found.get((row.device, row.action), replace(row, bytes=0))
            found[row.device, row.action] = replace(
                row,
                start_s=min(before.start_s, row.start_s),
                end_s=max(before.end_s, row.end_s),
                bytes=before.bytes + row.bytes,
            )
        return tuple(sorted(found.values(), key=lambda row: (row.start_s, row.end_s)))

    def _size(self, part: int, step: Step) -> int:
        """Return the bytes of a step's part: what its seat trains on the way to the sum, what it holds on the way
        back."""
        assert step.action.letter == AVERAGE, "an average has no other steps"
        lane = next(lane for lane in self.plan.lanes if lane.name == step.action.lane)
        segment = lane.segments[step.action.segment]
        gives = step.kind in (steps.PUSH, steps.COLLECT)
        first, end = part * self.part_bytes, (part + 1) * self.part_bytes
        own = {self.spans[name][0] for name in (segment.trained if gives else segment.units) if name in self.trained}
        if not gives:
            own.update(each for name in segment.units for each in self.spans[name][1:] if not _covered(each, own))
        return round(self.state * sum(max(0, min(b, end) - max(a, first)) for a, b in own))

    def _transfer(self, device: str, part: int, step: Step, task: int) -> Transfer:
        link = self.links[device, step.peer]
        share = self.uses.get((device, step.peer), LinkUse(source=device, target=step.peer)).share
        lane = [lane.name for lane in self.plan.lanes].index(step.action.lane)
        alone = (device, step.peer) in self.alone
        held = ports(self.numbers[device], self.numbers[step.peer], len(self.numbers), alone=alone)
        return Transfer(
            egress=held.egress,
            ingress=held.ingress,
            holds_ns=nanoseconds(self._size(part, step) / (link.bytes_per_s * share)),
            latency_ns=nanoseconds(link.latency_s),
            rank=(part, lane, step.action.segment, self.numbers[device]),
            feeds=(task,),
        )


def _spans(profile: Profile) -> dict[str, list[tuple[int, int]]]:
    """Return the places of each unit's trained bytes among those of the whole model: first those that are counted with
    it, then those of weights that it shares with an earlier unit, which gives them to the sum for both."""
    spans: dict[str, list[tuple[int, int]]] = {}
    tied: dict[str, tuple[int, int]] = {}
    at = 0
    for unit in profile.units:
        known = [name for name in unit.tied if name in profile.tied_bytes]
        before = [tied[name] for name in known if name in tied]
        size = unit.trainable_bytes - sum(end - first for first, end in before)
        spans[unit.name] = [(at, at + size), *before]
        place = at
        for name in (name for name in known if name not in tied):
            tied[name] = (place, place + profile.tied_bytes[name])
            place += profile.tied_bytes[name]
        at += size
    return spans


def _covered(span: tuple[int, int], spans: Iterable[tuple[int, int]]) -> bool:
    return any(first <= span[0] and span[1] <= end for first, end in spans)
