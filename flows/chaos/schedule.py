"""Draws the faults of a rehearsal from a seed.

A lost device is started again after some seconds, and takes part again then. But when that is, is a matter of seconds,
and not of rounds. So a device that was taken meets no fault again until the end of the coordinator, whose next start
starts every worker, and one device at least is always left. Any number of faults can be drawn, one a round at most, but
for a second one during the recovery from the first.
"""

import random

from fleetune.contracts.record import positive, record
from fleetune.errors import Refused
from fleetune.training.faults import CUT, FREEZE, KILL, MEMORY, MOVE, SEVER, Fault
from flows.chaos.places import Places

LEAST_DEVICES = 2
BORDER_ROUNDS = 3
"""Rounds at the beginning and the end in which nothing is drawn, so that every fault comes to happen."""
FROZEN_S = 0.5
SECOND = 0.3
"""Part of the losses that a second one follows during the recovery."""
STOP = "coordinator killed"
WEIGHTS = {KILL: 8, FREEZE: 4, MEMORY: 2, CUT: 6, SEVER: 1, STOP: 4}
"""A link that does not come back costs 2.5 s before a device is given up, so few are drawn."""


@record
class CoordinatorEnd:
    """The coordinator is killed between logging a commit and sending it."""

    number: int
    round: int


@record
class Schedule:
    """The faults of a rehearsal."""

    devices: tuple[Fault, ...] = ()
    coordinator: tuple[CoordinatorEnd, ...] = ()

    @property
    def count(self) -> int:
        """The number of faults."""
        return len(self.devices) + len(self.coordinator)


def check_room(devices: int, rounds: int, count: int) -> None:
    """Refused where the devices or rounds are too few for so many faults."""
    positive("chaos", faults=count)
    if devices < LEAST_DEVICES:
        raise Refused("chaos: the plan uses one device only; a device can be lost only where another one is left")
    if count + BORDER_ROUNDS > rounds:
        raise Refused(
            f"chaos: {count} faults need {count + BORDER_ROUNDS} rounds, one each, and training.rounds is {rounds}; "
            f"give at most {max(0, rounds - BORDER_ROUNDS)} faults, or --set training.rounds={count + BORDER_ROUNDS}"
        )


def draw(places: Places, rounds: int, count: int, seed: int) -> Schedule:
    """Return `count` faults; Refused where the devices or rounds are too few for them."""
    check_room(len(places.devices), rounds, count)
    drawn, living = random.Random(seed), list(places.devices)
    found, ends = list[Fault](), list[CoordinatorEnd]()
    for number, round in enumerate(sorted(drawn.sample(range(1, rounds - BORDER_ROUNDS + 1), count))):
        kind = drawn.choices(*_kinds(places, living))[0]
        if kind == STOP:
            ends.append(CoordinatorEnd(number=number, round=round))
            living = list(places.devices)
            continue
        left = [name for name in places.takeable if name in living] if len(living) >= LEAST_DEVICES else []
        device = drawn.choice(left if kind in (KILL, MEMORY) else living)
        frozen_s = FROZEN_S if kind == FREEZE and (device not in left or drawn.random() < 0.5) else None
        before = found[-1] if found and found[-1].number == number - 1 else None
        point = drawn.choice(places.points(kind, device, round))
        if kind == KILL and before is not None and before.takes_device and drawn.random() < SECOND:
            point, round = MOVE, before.round
        found.append(Fault(number=number, device=device, kind=kind, point=point, round=round, frozen_s=frozen_s))
        if kind == SEVER:  # who is behind the next message is lost, whoever that is
            living = [device]
        elif found[-1].takes_device:
            living.remove(device)
    return Schedule(devices=tuple(found), coordinator=tuple(ends))


def _kinds(places: Places, living: list[str]) -> tuple[list[str], list[int]]:
    """Return the kinds that may be drawn, and their weights; the last device is never taken, and has no link."""
    possible = {FREEZE, STOP}
    if len(living) >= LEAST_DEVICES:
        possible |= {KILL, MEMORY} if set(places.takeable) & set(living) else set()
        possible |= {CUT} if places.sends else set()
        possible |= {SEVER} if places.sends and set(places.takeable) == set(places.devices) else set()
    kinds = [kind for kind in WEIGHTS if kind in possible]
    return kinds, [WEIGHTS[kind] for kind in kinds]
