"""Backups of a plan: holders, memory, and the rounds between two of them."""

from dataclasses import replace

import pytest

from fleetune.clock import Clock
from fleetune.contracts.fleet import Device, Fleet, Link
from fleetune.contracts.plan import Backup, Lane, Plan, Segment, Share
from fleetune.contracts.profile import DeviceTimes, Profile, Unit
from fleetune.errors import Infeasible
from fleetune.planning.backups import MOST_OF_THE_TIME, with_backups
from fleetune.planning.strategy import Problem

DEVICES = "abc"
TRAINED_BYTES, RUNTIME_BYTES, STATE_PER_BYTE = 1000, 500, 3
"""Of a unit; of an idle worker; a parameter and its two moments."""
ROUND_S = 4.0


def problem(bytes_per_s: float = 1e9, memory_bytes: int = 1 << 30) -> Problem:
    """Three equal devices, and a model of three units that take a second each way."""
    devices = tuple(Device(name=name, memory_bytes=memory_bytes, cores=1.0, fingerprint="test") for name in DEVICES)
    links = tuple(
        Link(source=a, target=b, latency_s=0.0, bytes_per_s=bytes_per_s) for a in DEVICES for b in DEVICES if a != b
    )
    units = tuple(
        Unit(
            name=name,
            param_bytes=TRAINED_BYTES,
            trainable_bytes=TRAINED_BYTES,
            activation_bytes=0,
            output_bytes=0,
            gradient_bytes=0,
            flops=1,
        )
        for name in "uvw"
    )
    seconds = ((1.0,),) * len(units)
    times = tuple(
        DeviceTimes(device=name, runtime_bytes=RUNTIME_BYTES, forward_s=seconds, backward_s=seconds) for name in DEVICES
    )
    profile = Profile(model="test", units=units, batch_sizes=(1,), times=times)
    fleet = Fleet(devices=devices, links=links)
    return Problem(fleet=fleet, profile=profile, micro_batch_samples=2, micro_batches=1)


def chain(*groups: str) -> Plan:
    """A plan in which each group trains one unit; samples are dealt evenly."""
    segments = tuple(
        Segment(
            units=(unit,),
            shares=tuple(Share(device=device, samples=2 // len(group)) for device in group),
            warmup=1,
        )
        for unit, group in zip("uvw", groups, strict=False)
    )
    return Plan(strategy="test", micro_batch_samples=2, micro_batches=1, lanes=(Lane(name="main", segments=segments),))


def backed_up(plan: Plan, posed: Problem) -> Plan:
    return with_backups(plan, posed, Clock(posed.fleet, posed.profile))


def test_a_segment_on_one_device_is_backed_up_on_the_next_one() -> None:
    """Asteroid, section 3.4: to a device of the next group, the last one to the first; a group is its own backup."""
    found = backed_up(chain("a", "b", "c"), problem())
    assert found.backups == tuple(Backup(lane="main", segment=at, holder=to) for at, to in enumerate("bca"))
    two = backed_up(chain("a", "bc"), problem())
    assert [(each.segment, each.holder) for each in two.backups] == [(0, "b")]


def test_a_plan_of_one_device_has_no_backup_and_holds_no_snapshot() -> None:
    """What the device loses it loses with its snapshot, so that memory for all it trains and no more is enough."""
    alone = Segment(units=("u", "v", "w"), shares=(Share(device="a", samples=2),), warmup=1)
    plan = replace(chain("a"), lanes=(Lane(name="main", segments=(alone,)),))
    needed = RUNTIME_BYTES + 3 * TRAINED_BYTES * (STATE_PER_BYTE + 1)
    posed = problem(memory_bytes=needed)
    found = backed_up(plan, posed)
    assert found == plan and Clock(posed.fleet, posed.profile).memory_bytes(found, "a") == needed


def test_of_the_next_group_the_device_with_the_most_free_memory_holds_it() -> None:
    """Device b has less memory than c, so that c holds the backup of a."""
    posed = problem()
    small = replace(posed.fleet.device("b"), memory_bytes=1 << 29)
    devices = tuple(small if each.name == "b" else each for each in posed.fleet.devices)
    found = backed_up(chain("a", "bc"), replace(posed, fleet=replace(posed.fleet, devices=devices)))
    assert [each.holder for each in found.backups] == ["c"]


def test_the_memory_of_snapshots_and_backups_is_counted() -> None:
    """Drawn by hand: a device holds weights, gradients and moments of its unit, two snapshots and two backups, as it
    lets go of the last ones only when everybody has the next.

    With a byte less the plan is infeasible, and the error names it.
    """
    own = TRAINED_BYTES * (STATE_PER_BYTE + 1)
    needed = RUNTIME_BYTES + own + 2 * 2 * TRAINED_BYTES * STATE_PER_BYTE
    posed = problem(memory_bytes=needed)
    found = backed_up(chain("a", "b", "c"), posed)
    assert {Clock(posed.fleet, posed.profile).memory_bytes(found, device) for device in DEVICES} == {needed}
    with pytest.raises(Infeasible, match="device a lacks 1 byte for its snapshot and the backups of others"):
        backed_up(chain("a", "b", "c"), problem(memory_bytes=needed - 1))


def test_backups_take_at_most_their_share_of_the_time() -> None:
    """The slower the link, the more rounds lie between two backups: never more than 2 % of the time, never fewer
    rounds than that needs.
    """
    for bytes_per_s in (1e9, 1e4, 1e3, 123.0):
        posed = problem(bytes_per_s)
        plan = chain("a", "b", "c")
        every, round_s = backed_up(plan, posed).backup_every_rounds, Clock(posed.fleet, posed.profile).round_s(plan)
        busy_s = TRAINED_BYTES * STATE_PER_BYTE / bytes_per_s
        assert busy_s <= MOST_OF_THE_TIME * every * round_s
        assert every == 1 or busy_s > MOST_OF_THE_TIME * (every - 1) * round_s


def test_a_round_that_takes_no_time_has_a_backup() -> None:
    """However slow the link, no number of rounds of 0 s lasts as long as a backup, so each round has one."""
    posed = problem(123.0)
    none = ((0.0,),) * 3
    times = tuple(replace(each, forward_s=none, backward_s=none) for each in posed.profile.times)
    found = backed_up(chain("a", "b", "c"), replace(posed, profile=replace(posed.profile, times=times)))
    assert found.backup_every_rounds == 1 and len(found.backups) == 3
