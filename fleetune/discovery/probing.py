"""Every directed link of a fleet, measured one at a time."""

from functools import partial
from itertools import permutations

from fleetune.contracts import wire
from fleetune.contracts.fleet import Link
from fleetune.contracts.progress import Progress
from fleetune.contracts.record import record
from fleetune.contracts.ways import Links
from fleetune.discovery.conversation import Conversation
from fleetune.discovery.emulation import holds
from fleetune.discovery.fit import GOOD_FIT, Line, best_fit
from fleetune.discovery.link_work import LinkProbe
from fleetune.discovery.protocol import Probe, Probed
from fleetune.discovery.sweep import most_bytes


@record
class End:
    """What a probe must know of a device."""

    name: str
    machine: str
    memory_bytes: int


class Probing:
    """Probes links of the devices in a conversation; `asked` is what they are emulated as, where they are."""

    def __init__(self, conversation: Conversation, asked: Links | None) -> None:
        self._conversation = conversation
        self._asked = asked

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

    def _link(self, source: End, target: End) -> Link:
        def expected(line: Line) -> bool:
            return self._asked is None or holds(self._asked.way(source.name, target.name), line)

        line = best_fit(partial(self._probe, source, target), expected)
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
