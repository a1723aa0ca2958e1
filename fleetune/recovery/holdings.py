"""Versions of a model, the holdings of devices, and the newest version that a plan can go on from.

A version is the state after a number of committed rounds, together with the attempt that committed the last of them: a
round that is rolled back and run again by another plan leads to another version, and the two are never mixed. The
commit log says which versions count (`History`).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from fleetune.contracts.plan import Plan
from fleetune.contracts.record import record
from fleetune.errors import Infeasible, Refused
from fleetune.program import seats_of
from fleetune.recovery.transfers import DISK, Item, Links, Missing, Transfer, assign, sources_of

LIVE, PREPARED, SNAPSHOT, BACKUP, MOVED = "live", "prepared", "snapshot", "backup", "moved"
"""Forms of a holding in memory. `prepared`: the version that a worker reaches if it applies the round whose gradients
it has complete. `moved`: received for a plan that has not begun yet. Copies on disk are whole checkpoints."""


class Attempt(NamedTuple):
    """Number of an attempt to run rounds; each loss of a device or message begins a new one. Later ones are greater."""

    coordinator: int
    """Number of the coordinator's starts; a file on its disk counts them, so that no two attempts are alike."""
    number: int


class Version(NamedTuple):
    """The state after a number of committed rounds."""

    rounds: int
    attempt: Attempt
    """In which the last of these rounds was committed."""

    def __str__(self) -> str:
        return f"the state after round {self.rounds}" if self.rounds else "the state before the first round"


INITIAL = Version(0, Attempt(0, 0))
"""The weights that training begins with; every device can read them."""


class Span(NamedTuple):
    """Consecutive rounds that one attempt committed, up to the next span."""

    first: int
    attempt: Attempt


@record
class History:
    """The commit log: how many rounds are committed, and in which attempts."""

    rounds: int = 0
    spans: tuple[Span, ...] = ()

    @staticmethod
    def of(rounds: int) -> "History":
        """Return the history of rounds that earlier coordinators have committed, whose workers are gone."""
        return History(rounds=rounds, spans=(Span(0, INITIAL.attempt),) if rounds else ())

    def committed(self, round: int, attempt: Attempt) -> "History":
        """Return the history with one more round; Refused unless it is the next one, of no older attempt."""
        if round != self.rounds or (self.spans and attempt < self.spans[-1].attempt):
            raise Refused(
                f"commit log: round {round} of {attempt} cannot follow {self}; commit round {self.rounds} of the same "
                "attempt or a later one"
            )
        same = self.spans and self.spans[-1].attempt == attempt
        return History(rounds=round + 1, spans=self.spans if same else (*self.spans, Span(round, attempt)))

    def rewound(self, rounds: int) -> "History":
        """Return the history of the first `rounds` rounds; Refused if it has fewer."""
        if not 0 <= rounds <= self.rounds:
            raise Refused(
                f"commit log: it has {self.rounds} rounds and cannot be rewound to {rounds}; give at most that"
            )
        return History(rounds=rounds, spans=tuple(span for span in self.spans if span.first < rounds))

    @property
    def version(self) -> Version:
        """The state after all committed rounds."""
        return Version(self.rounds, self.spans[-1].attempt) if self.rounds else INITIAL

    def __contains__(self, version: object) -> bool:
        """Tell whether a version is of this history, and not of rounds that were rolled back."""
        if not isinstance(version, Version) or not 0 <= version.rounds <= self.rounds:
            return False
        return self.rewound(version.rounds).version == version


@record
class Holding:
    """Items of one version that a device has in memory in one form."""

    device: str
    version: Version
    form: str
    items: frozenset[Item]


@record
class Need:
    """Items that a plan wants on a device, to train them or as a backup for another one."""

    device: str
    items: frozenset[Item]
    form: str = LIVE
    """`live` or `backup`."""


@record
class SentBackup:
    """Items that one device sends another one, which keeps them in case the first is lost."""

    source: str
    holder: str
    items: frozenset[Item]


@record
class UnitItems:
    """Names of the tensors of a unit that training changes."""

    trained: tuple[str, ...]
    """Trainable parameters."""
    buffers: tuple[str, ...] = ()


@record
class Restoration:
    """How all devices come to one version: what `restoration` returns."""

    version: Version
    """INITIAL: every device reads the initial weights, and nothing moves."""
    rolls_forward: tuple[str, ...] = ()
    """Devices that apply the round they have prepared before anything moves: it is in the commit log."""
    transfers: tuple[Transfer, ...] = ()
    reason: str = ""
    """Why it is not the newest committed version; empty if it is, from memory or from disk."""

    @property
    def reads_checkpoint(self) -> bool:
        """True if a device lacks what no other one can send it."""
        return any(each.source == DISK for each in self.transfers)


def needs_of(plan: Plan, units: Mapping[str, UnitItems]) -> tuple[Need, ...]:
    """Return what each device of a plan must hold, sorted by device.

    units: unit -> its tensors.
    """
    live, _ = _held(plan, units)
    found = [Need(device=device, items=frozenset(live[device])) for device in sorted(live)]
    kept = defaultdict[str, frozenset[Item]](frozenset)
    for each in backups_of(plan, units):
        kept[each.holder] |= each.items
    found += [Need(device=device, items=kept[device], form=BACKUP) for device in sorted(kept)]
    return tuple(found)


def backups_of(plan: Plan, units: Mapping[str, UnitItems]) -> tuple[SentBackup, ...]:
    """Return which device sends which backups to whom, in the order of the plan's backups.

    A holder gets every item once, also a tied weight that several of the devices train that it holds backups for, and
    nothing that it trains itself. units: unit -> its tensors.
    """
    live, segments = _held(plan, units)
    found, given = list[SentBackup](), defaultdict[str, set[Item]](set)
    lanes = {lane.name: lane for lane in plan.lanes}
    for backup in plan.backups:
        if backup.lane:
            source = lanes[backup.lane].segments[backup.segment].devices[0]
            items = segments[backup.lane, backup.segment]
        else:
            source, items = plan.collector, {item for item in live[plan.collector] if not item.lane}
        new = frozenset(items - live[backup.holder] - given[backup.holder])
        given[backup.holder] |= new
        if new:
            found.append(SentBackup(source=source, holder=backup.holder, items=new))
    return tuple(found)


def _held(
    plan: Plan, units: Mapping[str, UnitItems]
) -> tuple[defaultdict[str, set[Item]], dict[tuple[str, int], set[Item]]]:
    """Return what each device trains, and the items of each segment."""
    live = defaultdict[str, set[Item]](set)
    segments: dict[tuple[str, int], set[Item]] = {}
    for seat in seats_of(plan):
        lane = seat.lane
        buffers = {Item(lane.name, name) for unit in seat.segment.units for name in units[unit].buffers}
        trained = {name for unit in seat.segment.trained for name in units[unit].trained}
        own = buffers if plan.collector else buffers | {Item(lane.name, name) for name in trained}
        segments[lane.name, seat.index] = own
        live[seat.device] |= own
        if plan.collector:
            live[plan.collector] |= {Item("", name) for name in trained}
    return live, segments


def restoration(
    holdings: Collection[Holding],
    needs: Collection[Need],
    history: History,
    on_disk: Collection[Version],
    sizes_bytes: Mapping[Item, int],
    links: Links,
) -> Restoration:
    """Return how the devices that `needs` names come to the newest version that is whole.

    A version is whole if every needed item has a holder that is or can reach the device that needs it, or if its
    checkpoint is on disk, from which then comes what is in no memory. Holdings of rounds that are not in the commit log
    do not count: what is prepared counts once its commit is logged.

    holdings: what living devices hold in memory. on_disk: versions of complete checkpoints, and INITIAL. sizes_bytes:
    of every needed item. Infeasible if no version is whole.
    """
    in_memory = {holding.version for holding in holdings}
    reason = ""
    for version in sorted({v for v in {history.version, *in_memory, *on_disk} if v in history}, reverse=True):
        if version == INITIAL and version in on_disk:
            return Restoration(version=version, reason=reason)
        same = [holding for holding in holdings if holding.version == version]
        missing, lost = _missing(same, needs, links, stored=version in on_disk)
        if not lost:
            rolls = tuple(sorted({holding.device for holding in same if holding.form == PREPARED}))
            moves = assign(missing, sizes_bytes, links)
            return Restoration(version=version, rolls_forward=rolls, transfers=moves, reason=reason)
        reason = reason or f"{version} is lost: no device that is left can send {_some(lost)} of it"
    raise Infeasible(
        "recovery: no version is whole, neither in the memory of the devices that are left nor on disk; "
        "start the training anew"
    )


def _missing(
    holdings: Iterable[Holding], needs: Iterable[Need], links: Links, stored: bool
) -> tuple[tuple[Missing, ...], tuple[Item, ...]]:
    """Return the items that devices lack, with the devices that can send them, and the items that nobody can send.

    holdings: of one version. stored: whether its checkpoint is on disk, which has all that no device can send.
    """
    holders = defaultdict[Item, set[str]](set)
    for holding in holdings:
        for item in holding.items:
            holders[item].add(holding.device)
    wanted = defaultdict[str, set[Item]](set)
    for need in needs:
        wanted[need.device] |= need.items
    missing, lost = list[Missing](), set[Item]()
    for device in sorted(wanted):
        for item in sorted(wanted[device]):
            if device in holders[item]:
                continue
            sources = sources_of(holders[item], device, links) or ((DISK,) if stored else ())
            if sources:
                missing.append(Missing(device, item, sources))
            else:
                lost.add(item)
    return tuple(missing), tuple(sorted(lost))


def _some(items: tuple[Item, ...]) -> str:
    """Name the first item, and the number of the others."""
    return f"{items[0]}" + (f" and {len(items) - 1} more" if len(items) > 1 else "")
