"""Measurements that deviate from the stored fleet are repeated before they are accepted."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fleetune.contracts.fleet import Device, Fleet, Link
from fleetune.contracts.task import quiet
from fleetune.discovery.link_probe import SIZES_BYTES, LinkProbe, ProbeResult
from fleetune.discovery.link_prober import Expectations, LinkProber, ProbeEnd
from fleetune.discovery.tolerance import within_tolerance

ENDS = tuple(ProbeEnd(name=name, machine="m", memory_bytes=1 << 30) for name in "ab")
LATENCY_S, BYTES_PER_S, CPU_S_PER_BYTE = 1e-2, 1e7, 1e-8


def probe(slower: float = 1.0, dearer: float = 1.0) -> ProbeResult:
    """Link of 10 ms, 10 MB/s and 10 ns per byte, slowed and made costlier by the given factors."""
    trips = tuple((slower * (2 * LATENCY_S + size / BYTES_PER_S),) * 9 for size in SIZES_BYTES)
    cpu = tuple((dearer * CPU_S_PER_BYTE * size,) * 9 for size in SIZES_BYTES)
    return ProbeResult(sizes_bytes=SIZES_BYTES, round_trips_s=trips, sender_cpu_s=cpu, receiver_cpu_s=cpu)


class Scripted(LinkProber):
    """Prober with a scripted list of probes, followed by undisturbed ones."""

    def __init__(self, stored: Fleet | None, *first: ProbeResult) -> None:
        agents: Any = SimpleNamespace(probes=[], note=lambda sentence: None)
        super().__init__(agents, Expectations(asked=None, stored=stored, tolerance=0.1))
        self._first = list(first)
        self.asked: list[str] = []

    def _probe(self, source: ProbeEnd, target: ProbeEnd) -> ProbeResult:
        self.asked.append(source.name + target.name)
        found = self._first.pop(0) if self._first else probe()
        self._agents.probes.append(LinkProbe(source=source.name, target=target.name, probed=found))
        return found


def measured(prober: LinkProber) -> Fleet:
    """The fleet that those probes give."""
    links = tuple(prober.measure_links(ENDS, quiet))
    costs = prober.link_cpu_s_per_byte(ENDS)
    devices = (
        Device(name=end.name, memory_bytes=1, cores=1, fingerprint="f", link_cpu_s_per_byte=costs[end.name])
        for end in ENDS
    )
    return Fleet(devices=tuple(devices), links=links)


def test_a_disturbed_look_is_repeated_and_the_stored_fleet_stays() -> None:
    """Regression: a busy machine gave another fleet on every run, which restarted training from round 0."""
    stored = measured(Scripted(None))
    busy = Scripted(stored, probe(slower=2.0), probe(slower=1.7))
    assert within_tolerance(stored, measured(busy), 0.1)
    assert busy.asked == ["ab", "ab", "ab", "ba"]


def test_a_processor_that_was_disturbed_is_measured_again() -> None:
    """A deviating processor time repeats the probes of all links of the device."""
    stored = measured(Scripted(None))
    busy = Scripted(stored, probe(dearer=3.0))
    assert within_tolerance(stored, measured(busy), 0.1)
    assert len(busy.asked) > 2 and set(busy.asked) == {"ab", "ba"}


def test_a_link_that_has_changed_is_believed_after_three_looks() -> None:
    """A changed link is accepted after three consistent probes."""
    stored = measured(Scripted(None))
    there = Scripted(stored, *(probe(slower=2.0) for _ in range(3)))
    found = measured(there)
    assert there.asked == ["ab"] * 3 + ["ba"] and not within_tolerance(stored, found, 0.1)
    assert found.link("a", "b").bytes_per_s == pytest.approx(BYTES_PER_S / 2, rel=0.01)


def test_a_fleet_that_is_new_is_looked_at_once() -> None:
    """Links and devices that the stored fleet lacks are probed once."""
    stored = measured(Scripted(None))
    renamed = Fleet(
        devices=tuple(replace(device, name=device.name.upper()) for device in stored.devices),
        links=tuple(Link(source=x, target=y, latency_s=1.0, bytes_per_s=1.0) for x, y in ("AB", "BA")),
    )
    for earlier in (None, renamed):
        prober = Scripted(earlier)
        measured(prober)
        assert prober.asked == ["ab", "ba"]
