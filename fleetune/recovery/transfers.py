"""Who sends which missing tensor to whom, so that all devices have theirs as early as possible.

Every missing item is sent once to each device that lacks it, which is the least that can be sent. Where several devices
hold it, the choice balances the ports: a transfer of n bytes occupies its source's egress and its target's ingress for
n / bandwidth, as in the simulation. With transfers that may be interrupted, the busiest port alone decides when all
have ended (an open shop with preemption; Gonzalez and Sahni 1976).
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from fleetune.contracts.record import record

Links = Mapping[tuple[str, str], float]
"""(Source, target) -> bytes per second; a pair that is absent cannot be used."""
OUT, IN = "out", "in"
DISK = ""
"""Source of what no device that is left can send: the checkpoint on the coordinator's disk."""
GAIN = 1e-12
"""Least relative gain for which a transfer gets another source, so that rounding errors move nothing."""


class Item(NamedTuple):
    """A tensor that training changes: a trained parameter with its optimizer state, or a buffer."""

    lane: str
    """Empty for what a collector holds for all lanes."""
    name: str

    def __str__(self) -> str:
        return f"{self.lane}/{self.name}" if self.lane else self.name


class Missing(NamedTuple):
    """A tensor that a device lacks, and the devices that can send it."""

    target: str
    item: Item
    sources: tuple[str, ...]


@record
class Transfer:
    """Tensors of one lane that one device sends to another."""

    source: str
    """DISK: it is read from the checkpoint."""
    target: str
    lane: str
    """Empty for what a collector holds for all lanes."""
    names: tuple[str, ...]
    bytes: int


def sources_of(holders: Collection[str], target: str, links: Links) -> tuple[str, ...]:
    """Return the holders that have a link to a device, sorted."""
    return tuple(sorted(holder for holder in holders if (holder, target) in links))


def assign(missing: Collection[Missing], sizes_bytes: Mapping[Item, int], links: Links) -> tuple[Transfer, ...]:
    """Return transfers that bring every missing item to its device.

    The largest items choose first, each the source whose ports are then free earliest; after that the busiest port
    gives items to other sources while that makes it less busy.
    """
    ordered = sorted(missing, key=lambda each: (-sizes_bytes[each.item], each))
    choice = _Choice(ordered, [sizes_bytes[each.item] for each in ordered], links)
    choice.improve()
    items = defaultdict[tuple[str, str, str], list[Item]](list)
    for each, source in zip(ordered, choice.sources, strict=True):
        items[source, each.target, each.item.lane].append(each.item)
    return tuple(
        Transfer(
            source=source,
            target=target,
            lane=lane,
            names=tuple(sorted(item.name for item in found)),
            bytes=sum(sizes_bytes[item] for item in found),
        )
        for (source, target, lane), found in sorted(items.items())
    )


class _Choice:
    """A source for each missing item, and the seconds for which each port is then busy."""

    def __init__(self, missing: Sequence[Missing], sizes_bytes: Sequence[int], links: Links) -> None:
        """missing: in the order in which they choose."""
        self._missing, self._sizes_bytes, self._links = missing, sizes_bytes, links
        self.busy_s = defaultdict[tuple[str, str], float](float)
        self.sources = list[str]()
        for at, each in enumerate(missing):
            best = min(each.sources, key=lambda source: (self._busy_with(at, source), source))
            self.sources.append(best)
            self._add(at, best, 1)

    def improve(self) -> None:
        """Give items of the busiest port to other sources, as long as all ports involved are then less busy than it."""
        free = [at for at, each in enumerate(self._missing) if len(each.sources) > 1]
        for _ in range(len(free) ** 2):
            busiest = max(self.busy_s, key=lambda port: (self.busy_s[port], port))
            if not any(self._relieves(at, busiest) for at in free):
                return

    def _relieves(self, at: int, busiest: tuple[str, str]) -> bool:
        """Give an item of the busiest port to another source, if that helps; return whether it does."""
        each, before, most_s = self._missing[at], self.sources[at], self.busy_s[busiest]
        if busiest not in ((before, OUT), (each.target, IN)):
            return False
        self._add(at, before, -1)
        after = min((s for s in each.sources if s != before), key=lambda source: (self._busy_with(at, source), source))
        self._add(at, after, 1)
        involved = ((before, OUT), (after, OUT), (each.target, IN))
        if max(self.busy_s[port] for port in involved) < most_s * (1 - GAIN):
            self.sources[at] = after
            return True
        self._add(at, after, -1)
        self._add(at, before, 1)
        return False

    def _busy_with(self, at: int, source: str) -> float:
        """Return how long the busier port of an item's transfer would be busy with it."""
        busy_s = max(self.busy_s[source, OUT], self.busy_s[self._missing[at].target, IN])
        return busy_s + self._seconds(at, source)

    def _seconds(self, at: int, source: str) -> float:
        if source == DISK:
            return 0.0  # it takes no device's port
        return self._sizes_bytes[at] / self._links[source, self._missing[at].target]

    def _add(self, at: int, source: str, sign: int) -> None:
        self.busy_s[source, OUT] += sign * self._seconds(at, source)
        self.busy_s[self._missing[at].target, IN] += sign * self._seconds(at, source)
