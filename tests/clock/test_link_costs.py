"""Processor time that messages take from devices: beside computing threads, at the ends of a message, in a ring."""

from dataclasses import replace
from fractions import Fraction

import pytest

from fleetune.clock import forecast
from fleetune.clock.link_costs import frame_s_per_byte, lost_s_per_byte, ring_cpu_s
from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet, Machine
from fleetune.contracts.link_frames import FRAME_BYTES
from fleetune.errors import Refused
from tests.support.clock import fleets, ticks
from tests.support.clock.ticks import TICK_S, segment

COST = 1e-9


@pytest.mark.parametrize(
    ("cores", "times"), [(4.0, 0.0), (2.0, 0.0), (1.5, 1 / 3), (1.0, 1.0), (0.5, 2.0), (0.25, 4.0)]
)
def test_compute_time_lost_per_byte_by_cores(cores: float, times: float) -> None:
    """Two cores lose nothing, one core loses the link's seconds, and a quota below one core loses them at its own
    pace."""
    device = replace(fleets.device("a"), cores=cores, link_cpu_s_per_byte=COST)
    assert lost_s_per_byte(device) == pytest.approx(times * COST)


@pytest.mark.parametrize(
    ("cores", "idle", "computing"), [(4.0, 1.0, 1.0), (2.0, 1.0, 1.0), (1.0, 1.0, 2.0), (0.5, 2.0, 4.0)]
)
def test_a_byte_of_a_frame_takes_longer_on_less_than_a_core(cores: float, idle: float, computing: float) -> None:
    """Where two threads have two cores, a byte takes its processor seconds; half a core takes twice as long, and beside
    a computing thread again. The pace of an emulated process and of an accelerator does not concern its link."""
    device = replace(fleets.device("a"), cores=cores, link_cpu_s_per_byte=COST)
    assert frame_s_per_byte(device) == pytest.approx((idle * COST, computing * COST))
    for change in ({"emulated": True}, {"accelerator": "cuda:0"}):
        assert frame_s_per_byte(replace(device, **change)) == (COST, COST)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("cores", [0.3, 0.5, 1.0, 1.25, 1.5, 1.9, 2.0, 3.0, 3.5, 4.0])
def test_the_formula_equals_a_quota_dealt_in_small_slices(cores: float, threads: int) -> None:
    """The formula equals a simulation that divides the quota evenly among active threads, at most one core each."""
    work = Fraction(1)  # a processor second of the link's thread, while the others compute without end
    quota, wall, computed, slice_s = Fraction(cores), Fraction(0), Fraction(0), Fraction(1, 1000)
    while work > 0:
        got = min(Fraction(1), quota / (threads + 1)) * slice_s
        used = min(got, work)
        wall += slice_s * used / got
        computed += used
        work -= used
    lost = wall - computed / min(Fraction(1), quota / threads)
    device = replace(fleets.device("a"), cores=cores, threads=threads, link_cpu_s_per_byte=1.0)
    assert lost_s_per_byte(device) == pytest.approx(float(lost))


@pytest.mark.parametrize("change", [{"emulated": True}, {"accelerator": "cuda:0"}])
def test_devices_that_lose_no_compute_time(change: dict[str, object]) -> None:
    """Emulated process devices and accelerators lose no compute time to links."""
    device = replace(fleets.device("a"), cores=0.5, link_cpu_s_per_byte=COST, **change)
    assert lost_s_per_byte(device) == 0.0


def test_tasks_last_longer_by_their_transfers() -> None:
    """b (one core) takes 3 of 4 samples, so it receives 600 bytes forward and sends 600 backward: 6 ms each at 10 us a
    byte. a pays for 800 bytes each way; c has two cores and pays nothing."""
    devices = [replace(fleets.device(name), link_cpu_s_per_byte=1e-5) for name in "abc"]
    fleet = fleets.fleet(devices[0], devices[1], replace(devices[2], cores=2.0))

    def lasting(of: fleets.Fleet) -> dict[str, float]:
        rows = forecast(fleets.PLAN, of, fleets.PROFILE).rows
        return {f"{r.device} {r.action[-2]}": r.end_s - r.start_s for r in rows if r.action[-1] == "0"}

    free, paid = lasting(fleets.FLEET), lasting(fleet)
    more = {key: paid[key] - free[key] for key in free if ">" not in key and "R" not in key}
    expected = {"a F": 8e-3, "a B": 8e-3, "b F": 6e-3, "b B": 6e-3, "c F": 0.0, "c B": 0.0}
    assert more == pytest.approx(expected, abs=2e-9)
    assert {key: paid[key] - free[key] for key in free if ">" in key} == pytest.approx(
        dict.fromkeys((key for key in free if ">" in key), 0.0), abs=2e-9
    )


def test_a_middle_segment_pays_for_both_its_cuts() -> None:
    """b between a and c receives and sends 4 samples of 200 bytes: 1.6 ms more each way at 1 us a byte."""
    devices = [replace(fleets.device(name), link_cpu_s_per_byte=1e-6 * (name == "b")) for name in "abc"]
    plan = fleets.plan(("u0", {"a": 4}, 5), ("u1 u2", {"b": 4}, 3), ("u3", {"c": 4}, 1))
    free, paid = (forecast(plan, fleet, fleets.PROFILE) for fleet in (fleets.FLEET, fleets.fleet(*devices)))
    busy = {b.device: p.amount - b.amount for b, p in zip(free.busy_s, paid.busy_s, strict=True)}
    assert busy == pytest.approx({"a": 0.0, "b": 3 * 2 * 1.6e-3, "c": 0.0}, abs=2e-8)


def emulated(names: str, **machines: float) -> Fleet:
    """Emulated devices with a link cost of a tick a byte, on machines `names=cores`."""
    held = [
        replace(fleets.device(name), cores=0.5, emulated=True, link_cpu_s_per_byte=TICK_S) for name in names.split()
    ]
    shared = tuple(Machine(cores=cores, devices=tuple(names)) for names, cores in machines.items())
    return replace(fleets.fleet(*held, bytes_per_s=1 / TICK_S, latency_s=0.0), machines=shared)


def test_a_ring_takes_what_the_processors_of_a_machine_take() -> None:
    """Each of three members sends and receives 4/3 of 6 bytes: 16 ticks of a processor, 48 of three members on one
    machine. Its cores divide them; members elsewhere take none of its."""
    fleet = emulated("a b c d")
    assert ring_cpu_s(fleet, "abc", 6) == 0.0, "emulated processes have all cores of a machine that nobody knows"
    for machines, ticks_taken in (({"abc": 2.0}, 24), ({"abcd": 4.0}, 12), ({"ab": 1.0}, 32), ({"ad": 1.0}, 16)):
        assert ring_cpu_s(emulated("a b c d", **machines), "abc", 6) == pytest.approx(ticks_taken * TICK_S)
    quota = replace(fleet, devices=tuple(replace(device, emulated=False, cores=0.5) for device in fleet.devices))
    assert ring_cpu_s(quota, "abc", 6) == pytest.approx(32 * TICK_S), "a container has its quota"


def test_a_forecast_ring_lasts_as_long_as_its_links_or_its_processors() -> None:
    """Bug: rings of emulated devices were forecast half as long as they were, by links that were measured one at a
    time: in a ring all of them encrypt on the same cores. Plans of simulated devices have no processors."""
    units = [ticks.unit("u0", trained=6_000_000)]
    plan = ticks.plan({"main": [segment("u0", "a b c")]})
    plain = ticks.profile(units, {name: ([2], [1]) for name in "abc"})
    known = replace(plain, times=tuple(replace(times, update_s=(TICK_S,)) for times in plain.times))

    def ring_ticks(fleet: Fleet, profile: object) -> int:
        return ticks.ticks(forecast(plan, fleet, profile).round_s) - 3  # type: ignore[arg-type]

    sent = 4 * 2_000_000
    over_links = sent + 2 * FRAME_BYTES  # the first frame is encrypted, and the last one decrypted
    assert ring_ticks(emulated("a b c"), known) == pytest.approx(over_links, abs=4)
    assert ring_ticks(emulated("a b c", abc=2.0), known) == pytest.approx(24_000_000, abs=4)
    assert ring_ticks(emulated("a b c", abc=64.0), known) == pytest.approx(over_links, abs=4)
    assert ring_ticks(emulated("a b c", abc=2.0), plain) == pytest.approx(sent, abs=4)


def test_machines_belong_to_a_fleet() -> None:
    """A fleet without them is read and written as before; a machine has devices of the fleet, each on one machine."""
    fleet = emulated("a b c", ab=2.0)
    assert json_io.parse(Fleet, json_io.text(fleet), "fleet") == fleet
    assert "machines" not in json_io.dump(emulated("a b c"))
    for machines, words in (({"az": 2.0}, "a machine has device 'z'"), ({"ab": 1.0, "bc": 1.0}, "device on a machine")):
        with pytest.raises(Refused, match=words):
            emulated("a b c", **machines)
    with pytest.raises(Refused, match="at least two devices"):
        emulated("a b c", a=2.0)


def test_what_is_left_of_a_fleet_keeps_the_machines_that_are_shared() -> None:
    """Bug while it was built: a plan for the devices that are left was refused, since a machine named a lost one."""
    fleet = emulated("a b c d", abc=2.0)
    assert fleet.without(["c"]) == emulated("a b d", ab=2.0)
    assert fleet.without(["b", "c"]) == emulated("a d")
    with pytest.raises(Refused, match="no device 'z'"):
        fleet.without(["z"])
