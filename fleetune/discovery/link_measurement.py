"""Link measurement: probes every directed link of a fleet, one at a time, and estimates its latency and rate.

A round trip with n bytes is one way with n bytes plus one way back with a small answer. Clocks of two machines differ
by more than microseconds, so between machines both small trips count as half the empty round trip: one way with n
bytes = round trip(n) - round trip(0) / 2. The rate does not depend on this assumption; an asymmetric latency is
averaged over both directions. Devices on one machine share a clock, which times the way back directly.

Noise on a busy machine only adds time, so each size is represented by the lower quartile of its repeats, pooled over
all probes: one undisturbed probe among three determines the result. The line latency_s + n / bytes_per_s minimises the
Huber loss of the residuals, each divided by the square root of its time. Divided by the time itself, small sizes would
bend the line: a link that is shaped by tokens lets the first packets pass at once, and a rate that fits those, too, is
some percent too high for the messages that a training waits for. Undivided, only the largest sizes would count.
"""

from collections.abc import Callable
from functools import partial
from itertools import permutations

import numpy as np

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet, Link, NetworkSpec
from fleetune.contracts.record import record
from fleetune.contracts.task import Progress
from fleetune.discovery.agent_pool import STAGE, AgentPool
from fleetune.discovery.link_probe import (
    LinkProbe,
    ProbeRequest,
    ProbeResult,
    link_cpu_s_per_byte,
    max_payload_bytes,
    pool_probes,
    split_halves,
)
from fleetune.discovery.machine import LoadSample, load_between, sample_load
from fleetune.discovery.measurement import LinkEvidence, LinkFit, link_matches, same_link_cpu, same_times

TYPICAL_QUANTILE = 0.25
GOOD_FIT = 0.2
ATTEMPTS = 3
HUBER_BEND = 0.1
"""Relative residual of the largest size above which it counts as an outlier."""
MAX_BYTES_PER_S = 1e12


def measure_link(
    probe: Callable[[], ProbeResult], expected: Callable[[LinkFit], bool] = lambda line: True, tolerance: float = 0.1
) -> LinkFit:
    """Probe and fit a link; repeat while the fit is poor, unexpected or unsteady, at most ATTEMPTS times.

    Poor: an error above GOOD_FIT. Unsteady: earlier and later repeats of a probe differ by more than `tolerance`.
    Returns the first acceptable fit, of one probe or of all pooled. If there is none, returns the pooled fit, or the
    fit with the least error if the pooled fit is poor.
    """
    probes: list[ProbeResult] = []
    lines: list[LinkFit] = []
    while True:
        probes.append(probe())
        lines.append(fit_link(probes[-1]))
        if lines[-1].error <= GOOD_FIT and expected(lines[-1]) and _is_steady(probes[-1], tolerance):
            return lines[-1]
        together = fit_link(pool_probes(probes))
        if together.error <= GOOD_FIT and (len(probes) == ATTEMPTS or (len(probes) > 1 and expected(together))):
            return together
        if len(probes) == ATTEMPTS:
            return min([*lines, together], key=lambda line: line.error)


def _is_steady(probed: ProbeResult, tolerance: float) -> bool:
    parts = split_halves(probed)
    if parts is None:
        return True
    earlier, later = (fit_link(part) for part in parts)
    return same_times(earlier, later, tolerance + earlier.error + later.error)


def one_way_s(probed: ProbeResult) -> np.ndarray:
    """One-way duration of each payload size, shape [sizes]."""
    typical_s = np.array([np.quantile(times, TYPICAL_QUANTILE) for times in probed.round_trips_s])
    back_s = np.quantile(probed.back_s, TYPICAL_QUANTILE) if probed.back_s else typical_s[0] / 2
    return np.asarray(typical_s - back_s)


def fit_link(probed: ProbeResult) -> LinkFit:
    """Fit a robust line to the one-way times of a probe; latency_s >= 0, bytes_per_s > 0.

    Its `error` is the median of the relative residuals.
    """
    from scipy.optimize import least_squares  # half a second of import, which fleets without links do not need

    sizes_bytes = np.array(probed.sizes_bytes, float)
    times_s = np.maximum(one_way_s(probed), 1e-9)
    scale = np.array([times_s[0], times_s[-1] / sizes_bytes[-1]])  # scales both unknowns to about 1

    weights = np.sqrt(times_s / times_s.max())

    def relative(unknown: np.ndarray) -> np.ndarray:
        latency_s, s_per_byte = unknown * scale
        return np.asarray((latency_s + s_per_byte * sizes_bytes) / times_s - 1)

    least = [0.0, 1 / (MAX_BYTES_PER_S * scale[1])]
    start = np.maximum(1.0, least)  # above 1 where a busy machine made the largest payload seem to take no time
    found = least_squares(
        lambda x: weights * relative(x), start, bounds=(least, np.inf), loss="huber", f_scale=HUBER_BEND
    )
    latency_s, s_per_byte = found.x * scale
    return LinkFit(
        latency_s=float(latency_s),
        bytes_per_s=float(1 / s_per_byte),
        error=float(np.median(np.abs(relative(found.x)))),
    )


@record
class ProbeEnd:
    """Properties of a device that a probe depends on."""

    name: str
    machine: str
    memory_bytes: int


@record
class Expectations:
    """Reference values; measurements that deviate from them are repeated before they are accepted."""

    requested: NetworkSpec | None
    """Requested rates and latencies of emulated links; None if links are not emulated."""
    stored: Fleet | None
    """Fleet of an earlier run."""
    tolerance: float


class LinkProber:
    """Measures links between the devices of an agent pool."""

    def __init__(self, agents: AgentPool, expected: Expectations) -> None:
        self.evidence: list[LinkEvidence] = []
        """One entry for every link that was measured."""
        self._agents = agents
        self._expected = expected

    def measure_links(self, ends: tuple[ProbeEnd, ...], progress: Progress) -> list[Link]:
        """Measure every ordered pair, one at a time, so that no probe disturbs another."""
        links: list[Link] = []
        pairs = list(permutations(ends, 2))
        for done, (source, target) in enumerate(pairs):
            progress("measuring links", done, len(pairs), "links")
            links.append(self._link(source, target))
        if pairs:
            progress("measuring links", len(pairs), len(pairs), "links")
        return links

    def link_cpu_s_per_byte(self, ends: tuple[ProbeEnd, ...]) -> dict[str, float]:
        """device -> processor seconds per byte; probes its links again while the value deviates from the stored one."""
        found = {}
        for end in ends:
            for _ in range(1, ATTEMPTS):
                if self._as_stored(end.name):
                    break
                for other in ends:
                    if other != end:
                        self._probe(end, other)
                        self._probe(other, end)
            found[end.name] = link_cpu_s_per_byte(end.name, self._agents.probes)
        return found

    def _as_stored(self, device: str) -> bool:
        stored = self._expected.stored
        old_s = next((d.link_cpu_s_per_byte for d in stored.devices if d.name == device), None) if stored else None
        new_s = link_cpu_s_per_byte(device, self._agents.probes)
        return old_s is None or same_link_cpu(old_s, new_s, self._expected.tolerance)

    def _link(self, source: ProbeEnd, target: ProbeEnd) -> Link:
        requested, stored = self._expected.requested, self._expected.stored
        links = stored.links if stored else ()
        old = next((link for link in links if (link.source, link.target) == (source.name, target.name)), None)

        def expected(line: LinkFit) -> bool:
            if requested is not None and not link_matches(requested.link(source.name, target.name), line):
                return False
            return old is None or same_times(old, line, self._expected.tolerance + old.fit_error + line.error)

        before, first = self._load(source, target), len(self._agents.probes)
        line = measure_link(partial(self._probe, source, target), expected, self._expected.tolerance)
        after = self._load(source, target)
        loads = [load_between(before, after, before[end.name].machine) for end in (source, target)]
        self.evidence.append(
            LinkEvidence(
                source=source.name,
                target=target.name,
                lines=tuple(fit_link(probe.probed) for probe in self._agents.probes[first:]),
                load=max(loads, key=lambda load: load.waiting),
            )
        )
        if line.error > GOOD_FIT:
            self._agents.note(
                f"link {source.name} -> {target.name}: no line fits its times better than {line.error:.0%}; "
                "is the machine busy?"
            )
        return Link(
            source=source.name,
            target=target.name,
            latency_s=line.latency_s,
            bytes_per_s=line.bytes_per_s,
            fit_error=line.error,
        )

    def _load(self, *ends: ProbeEnd) -> dict[str, LoadSample]:
        """Counters of both ends, and of this process, whose work is not that of other programs."""
        return {**self._agents.sample_loads([end.name for end in ends]), STAGE: sample_load()}

    def _probe(self, source: ProbeEnd, target: ProbeEnd) -> ProbeResult:
        request = ProbeRequest(
            peer=target.name,
            budget_s=self._agents.limits.probe_s,
            most_bytes=max_payload_bytes(source.memory_bytes, target.memory_bytes),
            one_clock=source.machine == target.machine,
        )
        self._agents.send(source.name, "probe", json_io.dump(request))
        received = self._agents.receive("probed", {source.name})
        probed = json_io.load(ProbeResult, received.message.header, f"probe of link {source.name} -> {target.name}")
        self._agents.probes.append(LinkProbe(source=source.name, target=target.name, probed=probed))
        return probed
