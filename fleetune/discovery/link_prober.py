"""Link prober: measures every directed link of a fleet, one at a time."""

from functools import partial
from itertools import permutations

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet, Link
from fleetune.contracts.link_spec import NetworkSpec
from fleetune.contracts.record import record
from fleetune.contracts.task import Progress
from fleetune.discovery.agent_pool import AgentPool
from fleetune.discovery.link_fit import ATTEMPTS, GOOD_FIT, LinkFit, measure_link
from fleetune.discovery.link_probe import LinkProbe, ProbeRequest, ProbeResult, link_cpu_s_per_byte, max_payload_bytes
from fleetune.discovery.tolerance import link_matches, same_link_cpu, same_times


@record
class ProbeEnd:
    """Properties of a device that a probe depends on."""

    name: str
    machine: str
    memory_bytes: int


@record
class Expectations:
    """Reference values; measurements that deviate from them are repeated before they are accepted."""

    asked: NetworkSpec | None
    """Requested rates and latencies of emulated links; None if links are not emulated."""
    stored: Fleet | None
    """Fleet of an earlier run."""
    tolerance: float


class LinkProber:
    """Measures links between the devices of an agent pool."""

    def __init__(self, agents: AgentPool, expected: Expectations) -> None:
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
        asked, stored = self._expected.asked, self._expected.stored
        links = stored.links if stored else ()
        old = next((link for link in links if (link.source, link.target) == (source.name, target.name)), None)

        def expected(line: LinkFit) -> bool:
            if asked is not None and not link_matches(asked.link(source.name, target.name), line):
                return False
            return old is None or same_times(old, line, self._expected.tolerance + old.fit_error + line.error)

        line = measure_link(partial(self._probe, source, target), expected, self._expected.tolerance)
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

    def _probe(self, source: ProbeEnd, target: ProbeEnd) -> ProbeResult:
        told = ProbeRequest(
            peer=target.name,
            budget_s=self._agents.limits.probe_s,
            most_bytes=max_payload_bytes(source.memory_bytes, target.memory_bytes),
            one_clock=source.machine == target.machine,
        )
        self._agents.send(source.name, "probe", json_io.dump(told))
        received = self._agents.receive("probed", {source.name})
        probed = json_io.load(ProbeResult, received.message.header, f"probe of link {source.name} -> {target.name}")
        self._agents.probes.append(LinkProbe(source=source.name, target=target.name, probed=probed))
        return probed
