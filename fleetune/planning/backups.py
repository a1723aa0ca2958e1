"""Backups of a plan: who holds what only one device trains, and how often it is copied (Asteroid, section 3.4)."""

import math
from dataclasses import replace

from fleetune.clock import Clock
from fleetune.clock.costs import state_bytes
from fleetune.contracts.plan import Backup, Plan
from fleetune.errors import Infeasible
from fleetune.formatting import exact_size
from fleetune.planning.strategy import Problem

MOST_OF_THE_TIME = 0.02
"""Share of the rounds' time that a link is busy with backups."""


def with_backups(plan: Plan, problem: Problem, clock: Clock) -> Plan:
    """Return the plan in which every segment on a single device is backed up on a device of the next one, cyclically.

    A group of several devices is its own backup. A plan of one device stays as it is: a snapshot would be lost with it.

    Of the next group, the device with the most free memory holds it. The rounds between two backups are as few as keep
    their transfers below 2 % of the time. Infeasible, naming a device and its missing bytes, where the memory for
    snapshots and backups is not there.
    """
    if len(plan.devices) == 1:
        return plan
    found = replace(plan, backup_every_rounds=1)
    for lane in plan.lanes:
        for index, segment in enumerate(lane.segments):
            following = lane.segments[(index + 1) % len(lane.segments)].devices
            others = [device for device in following if device not in segment.devices]
            if len(segment.devices) == 1 and others:
                holder = max(others, key=lambda device: _free_bytes(found, problem, clock, device))
                found = replace(found, backups=(*found.backups, Backup(lane=lane.name, segment=index, holder=holder)))
    for device in found.devices:
        missing = -_free_bytes(found, problem, clock, device)
        if missing > 0:
            raise Infeasible(
                f"device {device} lacks {exact_size(missing)} for its snapshot and the backups of others; give it more "
                "memory, or set strategy.options.backups=0"
            )
    return replace(found, backup_every_rounds=rounds_between(found, problem, clock))


def rounds_between(plan: Plan, problem: Problem, clock: Clock) -> int:
    """Return the rounds between two backups; 1 where a round takes no time, since no number of these takes longer."""
    slowest_s = max((_seconds(plan, problem, each) for each in plan.backups), default=0.0)
    round_s = clock.round_s(plan)
    return max(1, math.ceil(slowest_s / (MOST_OF_THE_TIME * round_s))) if round_s else 1


def _free_bytes(plan: Plan, problem: Problem, clock: Clock, device: str) -> int:
    return problem.fleet.device(device).memory_bytes - clock.memory_bytes(plan, device)


def _seconds(plan: Plan, problem: Problem, backup: Backup) -> float:
    """Return how long the link to a backup's holder is busy with it."""
    (lane,) = (lane for lane in plan.lanes if lane.name == backup.lane)
    segment = lane.segments[backup.segment]
    link = problem.fleet.link(segment.devices[0], backup.holder)
    return state_bytes(segment.trained, problem.profile) / link.bytes_per_s
