"""Every directed link of a fleet, measured one at a time."""

from functools import partial
from itertools import permutations

from fleetune.contracts import wire
from fleetune.contracts.fleet import Fleet, Link
from fleetune.contracts.link_spec import NetworkSpec
from fleetune.contracts.record import record
from fleetune.contracts.task import Progress
from fleetune.discovery.conversation import Conversation
from fleetune.discovery.emulation import holds
from fleetune.discovery.fit import ATTEMPTS, GOOD_FIT, Line, best_fit
from fleetune.discovery.link_work import LinkProbe, link_cpu_s_per_byte
from fleetune.discovery.protocol import Probe, Probed
from fleetune.discovery.sweep import most_bytes
from fleetune.discovery.tolerance import same_link_cpu, same_times


@record
class End:
    """What a probe must know of a device."""

    name: str
    machine: str
    memory_bytes: int


@record
class Expected:
    """What a measurement is compared with; one that differs is looked at again before it is believed."""

    asked: NetworkSpec | None
    """What links are emulated as, where they are."""
    stored: Fleet | None
    """The fleet as an earlier run found it."""
    tolerance: float


class Probing:
    """Probes links of the devices in a conversation."""

    def __init__(self, conversation: Conversation, expected: Expected) -> None:
        self._conversation = conversation
        self._expected = expected

    def links(self, ends: tuple[End, ...], progress: Progress) -> list[Link]:
        """Every ordered pair, one at a time, so that no probe disturbs another."""
        links: list[Link] = []
        pairs = list(permutations(ends, 2))
        for done, (source, target) in enumerate(pairs):
            progress("measuring links", done, len(pairs), "links")
            links.append(self._link(source, target))
        if pairs:
            progress("measuring links", len(pairs), len(pairs), "links")
        return links

    def link_cpu_s_per_byte(self, ends: tuple[End, ...]) -> dict[str, float]:
        """By device, from the probes of its links; where that is not as it was, they are probed again."""
        found = {}
        for end in ends:
            for _ in range(1, ATTEMPTS):
                if self._as_stored(end.name):
                    break
                for other in ends:
                    if other != end:
                        self._probe(end, other)
                        self._probe(other, end)
            found[end.name] = link_cpu_s_per_byte(end.name, self._conversation.probes)
        return found

    def _as_stored(self, device: str) -> bool:
        stored = self._expected.stored
        old_s = next((d.link_cpu_s_per_byte for d in stored.devices if d.name == device), None) if stored else None
        new_s = link_cpu_s_per_byte(device, self._conversation.probes)
        return old_s is None or same_link_cpu(old_s, new_s, self._expected.tolerance)

    def _link(self, source: End, target: End) -> Link:
        asked, stored = self._expected.asked, self._expected.stored
        links = stored.links if stored else ()
        old = next((link for link in links if (link.source, link.target) == (source.name, target.name)), None)

        def expected(line: Line) -> bool:
            if asked is not None and not holds(asked.link(source.name, target.name), line):
                return False
            return old is None or same_times(old, line, self._expected.tolerance + old.fit_error + line.error)

        line = best_fit(partial(self._probe, source, target), expected, self._expected.tolerance)
        if line.error > GOOD_FIT:
            self._conversation.note(
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

    def _probe(self, source: End, target: End) -> Probed:
        told = Probe(
            peer=target.name,
            budget_s=self._conversation.limits.probe_s,
            most_bytes=most_bytes(source.memory_bytes, target.memory_bytes),
            one_clock=source.machine == target.machine,
        )
        self._conversation.say(source.name, "probe", wire.dump(told))
        received = self._conversation.hear("probed", {source.name})
        probed = wire.load(Probed, received.message.header, f"probe of link {source.name} -> {target.name}")
        self._conversation.probes.append(LinkProbe(source=source.name, target=target.name, probed=probed))
        return probed
