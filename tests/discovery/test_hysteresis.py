"""Which measurements replace the stored fleet."""

from dataclasses import replace
from typing import Any

import pytest

from fleetune.contracts.fleet import Device, Fleet, Link, Machine
from fleetune.discovery.hysteresis import Cause, Verdict, deviations, judge
from fleetune.discovery.machine import MachineLoad
from fleetune.discovery.measurement import LinkEvidence, LinkFit, Measurement

TOLERANCE = 0.1
CALM = MachineLoad(cores=2, other_cores=0.03, waiting=0.4)
"""The waits are those of an emulated quota: no other program computes."""
BUSY = MachineLoad(cores=2, other_cores=1.7, waiting=0.5)
PAIRS = [("desk", "nano"), ("nano", "desk")]
MB_PER_S = 1e6


def fleet(rate_mb_per_s: float = 10.0, cpu_s_per_byte: float = 1e-9, **device: Any) -> Fleet:
    """Desk and nano with links of this rate both ways."""
    made = {"memory_bytes": 1 << 30, "cores": 1.0, "fingerprint": "f", "link_cpu_s_per_byte": cpu_s_per_byte}
    return Fleet(
        devices=(Device(name="desk", **{**made, **device}), Device(name="nano", **made)),
        links=tuple(Link(source=a, target=b, latency_s=1e-3, bytes_per_s=rate_mb_per_s * MB_PER_S) for a, b in PAIRS),
    )


def measured(found: Fleet, load: MachineLoad = CALM, *probes_mb_per_s: float) -> Measurement:
    """A measurement of `found`; its probes were all alike, or had these rates."""
    return Measurement(
        fleet=found,
        links=tuple(
            LinkEvidence(
                source=link.source,
                target=link.target,
                lines=tuple(
                    LinkFit(latency_s=link.latency_s, bytes_per_s=rate, error=0.0)
                    for rate in [MB_PER_S * rate for rate in probes_mb_per_s] or [link.bytes_per_s] * 3
                ),
                load=load,
            )
            for link in found.links
        ),
    )


STORED = fleet()
SLOW, SLOWER = fleet(10 / 3), fleet(3.1)


def test_a_measurement_within_tolerance_keeps_the_stored_fleet() -> None:
    """Nothing has to be explained; with --from discover neither."""
    for anew in (False, True):
        assert judge(STORED, measured(fleet(9.5)), None, TOLERANCE, anew) == Verdict(keep=True)


@pytest.mark.parametrize("slowdown", [1.2, 1.5, 1.9])
def test_a_busy_machine_is_not_another_network(slowdown: float) -> None:
    """However often it is measured: ten runs on a machine whose cores others use keep the fleet, and say why."""
    seen = measured(fleet(10 / slowdown), BUSY)
    before = None
    for _ in range(10):
        verdict = judge(STORED, seen, before, TOLERANCE)
        assert verdict.keep
        assert verdict.why.startswith(f"2 links were up to {100 * (slowdown - 1):.0f} % slower while other programs")
        assert verdict.why.endswith("used 1.7 of 2 cores")
        before = seen


def test_a_busy_machine_does_not_hide_a_slow_link_for_ever() -> None:
    """Waits of half of the time explain a factor of two, not of three: the second run believes it, busy as it is."""
    first = judge(STORED, measured(SLOW, BUSY), None, TOLERANCE)
    assert first.keep and "for the first time" in first.why
    second = judge(STORED, measured(SLOWER, BUSY), measured(SLOW, BUSY), TOLERANCE)
    assert second == Verdict(keep=False, why="2 links were up to 3.2x slower, and so they were in the run before")


def test_a_change_is_believed_when_the_next_run_measures_it_too() -> None:
    """A slow or fast link replaces the stored fleet in the second run; a third run has nothing to replace."""
    for changed in (SLOW, fleet(20)):
        assert judge(STORED, measured(changed), None, TOLERANCE).keep
        assert not judge(STORED, measured(changed), measured(changed), TOLERANCE).keep
        assert judge(changed, measured(changed), measured(changed), TOLERANCE) == Verdict(keep=True)


def test_what_the_user_asks_for_is_believed_at_once() -> None:
    """--from discover takes a change at its first measurement, on a busy machine too."""
    verdict = judge(STORED, measured(fleet(6), BUSY), None, TOLERANCE, anew=True)
    assert verdict == Verdict(keep=False, why="2 links were up to 67 % slower")


@pytest.mark.parametrize(
    "before",
    [measured(STORED), measured(fleet(20)), measured(fleet(8.5)), measured(fleet(6), BUSY), measured(SLOW, CALM, 10)],
    ids=["unchanged", "faster", "much less", "busy", "one probe as stored"],
)
def test_two_different_deviations_confirm_nothing(before: Measurement) -> None:
    """Only the same change in the run before counts: not another one, and none that load or noise explains."""
    verdict = judge(STORED, measured(SLOW), before, TOLERANCE)
    assert verdict.keep and "for the first time" in verdict.why


def test_one_probe_that_finds_the_stored_times_proves_them() -> None:
    """Noise only adds time, so that two slow probes in three are noise, in every run."""
    seen = measured(SLOW, CALM, 3, 9.6, 2)
    verdict = judge(STORED, seen, seen, TOLERANCE)
    assert verdict == Verdict(keep=True, why="2 links were up to 3.0x slower, but not in every probe")


def test_load_makes_no_link_faster() -> None:
    """A fleet that was stored on a busy machine is corrected, and not kept because the machine is busy again."""
    assert not judge(STORED, measured(fleet(20), BUSY), measured(fleet(20), BUSY), TOLERANCE).keep


def test_waits_without_other_programs_are_a_quota() -> None:
    """An emulated share of a core makes its processes wait in every run, which explains no change."""
    assert {each.cause for each in deviations(STORED, measured(fleet(8)), TOLERANCE).values()} == {Cause.REAL}
    quiet = measured(fleet(8), replace(CALM, other_cores=0.5))
    assert {each.cause for each in deviations(STORED, quiet, TOLERANCE).values()} == {Cause.LOAD}


def test_processor_time_of_links() -> None:
    """A core's other thread doubles the processor time of bytes at most; beyond it the next run has to agree."""
    doubled, tripled = fleet(cpu_s_per_byte=2e-8), fleet(cpu_s_per_byte=4e-8)
    stored = fleet(cpu_s_per_byte=1e-8)
    for _ in range(2):
        assert judge(stored, measured(doubled, BUSY), measured(doubled, BUSY), TOLERANCE).keep
    assert judge(stored, measured(tripled, BUSY), None, TOLERANCE).keep
    assert not judge(stored, measured(tripled, BUSY), measured(tripled, BUSY), TOLERANCE).keep
    assert not judge(stored, measured(doubled), measured(doubled), TOLERANCE).keep


def test_other_devices_are_believed_at_once() -> None:
    """A device that is new, gone, or has other cores or hardware replaces the fleet in the first run, and is named."""
    one, shared = Fleet(devices=STORED.devices[:1]), Machine(cores=4.0, devices=("desk", "nano"))
    stated = "the image, the engines, the requested links or the shared machines have changed"
    cases = [
        (STORED, one, "device nano is gone"),
        (one, STORED, "device nano is new"),
        (STORED, fleet(cores=2.0, threads=2), "device desk has other cores and other threads"),
        (STORED, fleet(accelerator="cuda:0", fingerprint="g"), "device desk has another accelerator"),
        (STORED, fleet(fingerprint="g"), "device desk has other hardware, software or limits"),
        (STORED, replace(STORED, image="own"), stated),
        (STORED, replace(STORED, machines=(shared,)), stated),
    ]
    for old, new, why in cases:
        assert judge(old, measured(new, BUSY), None, TOLERANCE) == Verdict(keep=False, why=why)


def test_a_measurement_of_other_devices_confirms_nothing() -> None:
    """The run before may have had other devices, when an unfinished run keeps its fleet."""
    assert judge(STORED, measured(SLOW), measured(fleet(10 / 3, cores=2.0)), TOLERANCE).keep
