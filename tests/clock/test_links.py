"""What links take from a device's computing."""

from dataclasses import replace
from fractions import Fraction

import pytest

from fleetune.clock import forecast
from fleetune.clock.costs import lost_s_per_byte
from tests.clock import fleets

COST = 1e-9


@pytest.mark.parametrize(
    ("cores", "times"), [(4.0, 0.0), (2.0, 0.0), (1.5, 1 / 3), (1.0, 1.0), (0.5, 2.0), (0.25, 4.0)]
)
def test_what_a_byte_takes_on_so_many_cores(cores: float, times: float) -> None:
    """Two cores lose nothing, one core the link's seconds, a quota below one those seconds at its own pace."""
    device = replace(fleets.device("a"), cores=cores, link_cpu_s_per_byte=COST)
    assert lost_s_per_byte(device) == pytest.approx(times * COST)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("cores", [0.3, 0.5, 1.0, 1.25, 1.5, 1.9, 2.0, 3.0, 3.5, 4.0])
def test_the_rule_is_what_a_quota_dealt_in_small_slices_does(cores: float, threads: int) -> None:
    """Slice by slice: threads at work get equal parts of the quota, at most a core each; without the link's, too."""
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
def test_who_loses_nothing(change: dict[str, object]) -> None:
    """An emulated device of the process launcher is held by its computing thread alone; an accelerator computes."""
    device = replace(fleets.device("a"), cores=0.5, link_cpu_s_per_byte=COST, **change)
    assert lost_s_per_byte(device) == 0.0


def test_tasks_last_longer_by_what_they_send_and_receive() -> None:
    """b of one core takes 3 of 4 samples: forward it receives 3·200 bytes, backward it sends 3·200 of gradients; 10 us
    a byte makes 6 ms each. a only sends forward (4·200) and only receives backward; c has two cores and loses none."""
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
    """b between a and c, 4 samples of 200 bytes in and 200 out, at 1 us a byte: 1.6 ms more each way."""
    devices = [replace(fleets.device(name), link_cpu_s_per_byte=1e-6 * (name == "b")) for name in "abc"]
    plan = fleets.plan(("u0", {"a": 4}, 5), ("u1 u2", {"b": 4}, 3), ("u3", {"c": 4}, 1))
    free, paid = (forecast(plan, fleet, fleets.PROFILE) for fleet in (fleets.FLEET, fleets.fleet(*devices)))
    busy = {b.device: p.amount - b.amount for b, p in zip(free.busy_s, paid.busy_s, strict=True)}
    assert busy == pytest.approx({"a": 0.0, "b": 3 * 2 * 1.6e-3, "c": 0.0}, abs=2e-8)
