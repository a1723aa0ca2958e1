"""Lowering: the steps of every device, from a plan.

Who sends what to whom follows from the plan alone, but for some facts about the model: which units have trainable
parameters or running statistics, and which segments of a lane share weights.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from fleetune.contracts.plan import AVERAGE, BACKWARD, FORWARD, REDUCE, UPDATE, Action, Lane, Plan, actions_of
from fleetune.contracts.profile import Profile
from fleetune.errors import Refused
from fleetune.program import steps
from fleetune.program.seats import SampleTransfer, Seat, sample_transfers, seats_of
from fleetune.program.steps import DeviceProgram, Program, Step

TiedUnits = Mapping[str, Collection[str]]
"""Unit -> names of its trained parameters that other units read too."""


def lower(
    plan: Plan,
    *,
    trainable: Collection[str] | None = None,
    tied: TiedUnits | None = None,
    statistics: Collection[str] = (),
) -> Program:
    """Return the steps of every device in one round.

    trainable: units with trainable parameters (None: all); nothing is sent for the others' sake, but in averages for
    those with running statistics. Refused: an order with a forward or backward that is not the device's own or is there
    twice.
    """
    model = _Model(trainable, tied or {}, statistics)
    return Program(tuple(_Lowering(plan, device, model).program() for device in plan.devices))


def program_of(plan: Plan, profile: Profile) -> Program:
    """Return the steps of a plan for the model of a profile, which knows these facts but for running statistics, a
    fraction of a percent of an average. Refused: as by `lower`."""
    units = profile.units
    trainable = {unit.name for unit in units if unit.trainable_bytes}
    return lower(plan, trainable=trainable, tied={unit.name: unit.tied for unit in units})


def averaging_device(plan: Plan) -> str:
    """Return the device that averages the parameters of all lanes: the plan's, or else the one whose seats train most
    units, whose own parts cross no link; the first of equals."""
    if plan.averager in plan.devices:
        return plan.averager
    units: dict[str, int] = {}
    for seat in seats_of(plan):
        units[seat.device] = units.get(seat.device, 0) + len(seat.segment.trained)
    return max(units, key=units.__getitem__)


class _Model(NamedTuple):
    """What is to be known of the model."""

    trainable: Collection[str] | None
    tied: TiedUnits
    statistics: Collection[str]

    def changes(self, unit: str, letter: str) -> bool:
        """Return whether training changes what an exchange would carry of a unit."""
        trained = self.trainable is None or unit in self.trainable
        return trained or (letter == AVERAGE and unit in self.statistics)


class _Lowering:
    """Steps of one device."""

    def __init__(self, plan: Plan, device: str, model: _Model) -> None:
        self.plan, self.device, self.model, self.tied = plan, device, model, model.tied
        self.seats = {(seat.lane.name, seat.index): seat for seat in seats_of(plan, device)}
        self._between: dict[tuple[str, int], tuple[SampleTransfer, ...]] = {}

    def program(self) -> DeviceProgram:
        plan, own = self.plan, tuple(self.seats.values())
        found: list[Step] = []
        if plan.collector:
            found += self._from_hub(steps.HAND, plan.collector, UPDATE) if self.device == plan.collector else []
            found += self._of_seats(steps.PULL, plan.collector, UPDATE)
        actions = list(self._actions())
        last = {(action.lane, action.segment): action for action in actions if action.letter == BACKWARD}
        for action in actions:
            found += self._run(action)
            if plan.collector and last.get((action.lane, action.segment)) == action:
                whole = (self.seats[action.lane, action.segment],)  # its gradients; others may still be at work
                found += self._of_seats(steps.PUSH, plan.collector, UPDATE, whole)
        if plan.collector:
            found += self._from_hub(steps.COLLECT, plan.collector, UPDATE) if self.device == plan.collector else []
        else:
            found += [step for seat in own for step in self._sums_of_group(seat)]
            found += [step for seat in own for step in self._tied(seat, steps.SEND)]
            for seat in own:
                found += self._tied(seat, steps.RECEIVE)
        return DeviceProgram(self.device, tuple(found), tuple(self._averages()))

    def _actions(self) -> Iterator[Action]:
        """Yield the device's forwards and backwards in order. Refused: foreign and repeated ones."""
        done: set[Action] = set()
        for action in actions_of(self.plan, self.device):
            if action.letter not in (FORWARD, BACKWARD):
                continue
            seat = self.seats.get((action.lane, action.segment))
            known = seat is not None and action.micro_batch < self.plan.micro_batches_of(seat.lane)
            if not known or action in done:
                raise Refused(f"plan: the order of {self.device} has {action}, which is not its own or is there twice")
            done.add(action)
            yield action

    def _run(self, action: Action) -> list[Step]:
        """Return a forward or backward, with the transfers that it reads before it and those of its results after."""
        seat = self.seats[action.lane, action.segment]
        on = 1 if action.letter == FORWARD else -1
        before = self._transfers(seat, action, action.segment - on, steps.RECEIVE)
        return [*before, Step(steps.RUN, action), *self._transfers(seat, action, action.segment + on, steps.SEND)]

    def _transfers(self, seat: Seat, action: Action, other: int, kind: str) -> list[Step]:
        """Return the transfers between a seat and another segment, in the order of samples."""
        segments = seat.lane.segments
        if not 0 <= other < len(segments):
            return []
        low, high = sorted((seat.index, other))
        sender = Action(
            lane=action.lane,
            segment=seat.index if kind == steps.SEND else other,
            letter=action.letter,
            micro_batch=action.micro_batch,
        )
        found = []
        if (action.lane, low) not in self._between:
            self._between[action.lane, low] = sample_transfers(segments[low], segments[high])
        for each in self._between[action.lane, low]:
            mine, theirs = (each.source, each.target) if low == seat.index else (each.target, each.source)
            if mine == self.device:
                found.append(Step(kind, sender, (theirs,), each.first, each.end, each.carries_shared))
        return found

    def _sums_of_group(self, seat: Seat) -> Iterator[Step]:
        """Yield the sum of a seat's gradients over its group."""
        if len(seat.segment.devices) > 1:
            yield Step(steps.REDUCE, _sum(seat.lane, seat.index, 0), seat.segment.devices)

    def _tied(self, seat: Seat, kind: str) -> Iterator[Step]:
        """Yield what a seat sends to the segments that share its weights, or what it receives and the sum of all.

        Every member of a group has the group's sum; they are dealt to the members of the other segment in turn. The
        action's micro-batch is the number of the receiving segment.
        """
        sharing, own = self._sharing(seat), seat.segment.devices
        position = own.index(self.device)
        for other in (index for index in sharing if index != seat.index):
            members = seat.lane.segments[other].devices
            if kind == steps.SEND:
                for number, member in enumerate(members):
                    if number % len(own) == position:
                        yield Step(kind, _sum(seat.lane, seat.index, other), (member,))
            else:
                yield Step(kind, _sum(seat.lane, other, seat.index), (members[position % len(members)],))
        if sharing and kind == steps.RECEIVE:
            yield Step(steps.TIE, _sum(seat.lane, seat.index, 0), tuple(map(str, sharing)))

    def _sharing(self, seat: Seat) -> list[int]:
        """Return the segments of the lane that share trained weights with this one, itself included; empty without
        any."""
        own = {name for unit in seat.segment.trained for name in self.tied.get(unit, ())}
        found = [
            index
            for index, segment in enumerate(seat.lane.segments)
            if index == seat.index or any(own.intersection(self.tied.get(unit, ())) for unit in segment.trained)
        ]
        return found if own and len(found) > 1 else []

    def _of_seats(self, kind: str, hub: str, letter: str, seats: Iterable[Seat] | None = None) -> list[Step]:
        """Return the device's own ends of the exchanges of parameters or gradients that its seats, or some of them,
        have with the hub."""
        return [
            Step(kind, _exchange(seat.lane, seat.index, letter), (hub,))
            for seat in (self.seats.values() if seats is None else seats)
            if self._exchanges(seat, kind, letter)
        ]

    def _from_hub(self, kind: str, hub: str, letter: str) -> list[Step]:
        """Return the hub's ends of these exchanges, with every seat of the plan."""
        there = steps.OTHER_END[kind]
        return [
            Step(kind, _exchange(seat.lane, seat.index, letter), (seat.device,))
            for seat in seats_of(self.plan)
            if self._exchanges(seat, there, letter)
        ]

    def _exchanges(self, seat: Seat, kind: str, letter: str) -> bool:
        """Return whether a seat takes part: every seat gets parameters, those that train give.

        In an average only one member of a group gives, since all have the same.
        """
        if kind == steps.PULL:
            return any(self.model.changes(unit, letter) for unit in seat.segment.units)
        gives = any(self.model.changes(unit, letter) for unit in seat.segment.trained)
        return gives and (letter == UPDATE or seat.is_leader)

    def _averages(self) -> Iterator[Step]:
        """Yield the exchange that leaves every seat with the average of all lanes."""
        if not self.plan.average_every_rounds:
            return
        hub = averaging_device(self.plan)
        yield from self._of_seats(steps.PUSH, hub, AVERAGE)
        if self.device == hub:
            yield from self._from_hub(steps.COLLECT, hub, AVERAGE)
            yield from self._from_hub(steps.HAND, hub, AVERAGE)
        yield from self._of_seats(steps.PULL, hub, AVERAGE)


def _exchange(lane: Lane, segment: int, letter: str) -> Action:
    return Action(lane=lane.name, segment=segment, letter=letter, micro_batch=0)


def _sum(lane: Lane, segment: int, receiver: int) -> Action:
    return Action(lane=lane.name, segment=segment, letter=REDUCE, micro_batch=receiver)
