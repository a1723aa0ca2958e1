"""What lies between the rounds of real devices, and what their messages wait for, as the profile measured it.

Devices that have got a commit step their parameters, each in its own time; then they begin the next round, or a
collector hands out its parameters. A device with much to step begins later than others, so that these steps change the
rows of a round, too. Simulated profiles know nothing of this and are timed without.
"""

from collections.abc import Iterable
from dataclasses import replace

from fleetune.clock.costs import nanoseconds, segments_on, trained_units
from fleetune.contracts.fleet import Fleet, Link
from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.plan import Plan
from fleetune.contracts.profile import Profile

ACKNOWLEDGEMENT_BYTES, ACKNOWLEDGED_BYTES = 66, 2 * 1514
"""An Ethernet frame that acknowledges TCP segments, and the two full frames that it acknowledges."""
BOTH_WAYS = 1 + ACKNOWLEDGEMENT_BYTES / ACKNOWLEDGED_BYTES
"""Time of a transfer beside one in the opposite direction, relative to its time alone, as links are measured: each
direction also carries the acknowledgements of the other. A ring of two does this all the time, larger rings never."""


def with_message_waits(fleet: Fleet, profile: Profile) -> Fleet:
    """Return the fleet with links whose messages wait for a processor at both ends, as they do in a round."""
    waits_s = {times.device: times.message_wait_s for times in profile.times if times.message_wait_s}
    if not waits_s:
        return fleet

    def waiting(link: Link) -> Link:
        return replace(link, latency_s=link.latency_s + waits_s.get(link.source, 0.0) + waits_s.get(link.target, 0.0))

    return replace(fleet, links=tuple(map(waiting, fleet.links)))


def updates_ns(plan: Plan, profile: Profile) -> dict[str, int]:
    """Return the optimizer steps of a commit by device, in ns; empty if the profile knows no device's.

    A collector steps everything that is trained anywhere, and nobody else steps anything.
    """
    places = {unit.name: k for k, unit in enumerate(profile.units)}

    def step_ns(device: str, units: Iterable[str]) -> int:
        times = profile.times_of(device)
        step_s = sum(times.update_s[places[name]] for name in units) if times.update_s else 0.0
        return nanoseconds(step_s * times.stretch)

    if plan.collector:
        found = {plan.collector: step_ns(plan.collector, trained_units(plan))}
    else:
        found = {
            device: step_ns(device, (name for placed in segments_on(plan, device) for name in placed.segment.trained))
            for device in plan.devices
        }
    return {device: lasts_ns for device, lasts_ns in found.items() if lasts_ns}


def commit_s(plan: Plan, profile: Profile) -> float:
    """Return the seconds from the last device's report to the last device's commit.

    A message waits for a processor on the way to the coordinator and on the way back. What the coordinator does between
    them, a few milliseconds to write the commit to its disk, is not known.
    """
    return 2 * max(profile.times_of(device).message_wait_s for device in plan.devices)


def earlier(rows: Iterable[TimelineRow], by_ns: int) -> tuple[TimelineRow, ...]:
    """Return the rows with `by_ns` taken off their times."""
    return tuple(
        replace(row, start_s=(nanoseconds(row.start_s) - by_ns) / 1e9, end_s=(nanoseconds(row.end_s) - by_ns) / 1e9)
        for row in rows
    )
