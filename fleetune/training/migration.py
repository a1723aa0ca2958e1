"""How a device comes to a version under a plan, and what it says that it holds: messages of recovery.

The coordinator sends each device its own `Migration`. Tensors travel between the devices in parcels, so that what has
come is never there twice.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

import torch

from fleetune.contracts.plan import Plan
from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.recovery.holdings import Attempt, Holding, Restoration, SentBackup, Version
from fleetune.recovery.transfers import Item
from fleetune.training.checkpoints import Tensors, name_of
from fleetune.training.exchange import BACKUP_ITEMS, Arrival, Exchange, TransferKey

MOVED_ITEMS = "items"
"""Kind of the messages that carry items from one device to another."""
PARCEL_BYTES = 8 << 20
"""Most bytes of a message with the tensors of more than one item."""


@record
class SentItems:
    """Items of one lane that a device sends to another one."""

    target: str
    lane: str
    names: tuple[str, ...]


@record
class Parcel:
    """Items of one lane that the coordinator sends in one answer."""

    lane: str
    names: tuple[str, ...]


@record
class Source:
    """Items of one lane come from this device."""

    device: str
    lane: str


class LinkRates(NamedTuple):
    """Rates of one device's links, by peer: see `Migration`."""

    paced_bytes_per_s: dict[str, float]
    backup_bytes_per_s: dict[str, float]


@record
class Migration:
    """What one device does to come to a version under a plan."""

    plan: Plan
    version: Version
    from_disk: bool
    """True if it reads the checkpoint, or the initial weights, instead of what devices hold."""
    folder: str | None = None
    """Of the checkpoint; None: the initial weights."""
    sends: tuple[SentItems, ...] = ()
    sources: tuple[Source, ...] = ()
    parcels: tuple[Parcel, ...] = ()
    """What it asks the coordinator for, which reads the checkpoint for it."""
    residuals: bool = False
    """True if it also asks for what its messages had lost at the checkpoint."""
    paced_bytes_per_s: dict[str, float] = field(default_factory=dict)
    """Peer -> rate that this device's messages to it keep to, where the plan gives it a share of the link."""
    backup_bytes_per_s: dict[str, float] = field(default_factory=dict)
    """Peer -> rate that backups on it keep to."""
    addresses: dict[str, str] = field(default_factory=dict)
    """Device -> where its worker listens, of those that have come back."""
    gone: tuple[str, ...] = ()
    """Devices whose workers have ended, or were given up."""
    commit: dict[str, Any] | None = None
    """The commit of the round that it has prepared, if that is in the log."""

    @staticmethod
    def of(
        device: str,
        plan: Plan,
        found: Restoration,
        folder: str | None,
        rates: LinkRates,
        commit: dict[str, Any] | None,
    ) -> "Migration":
        """Return one device's part of a restoration."""
        return Migration(
            plan=plan,
            version=found.version,
            from_disk=found.from_disk,
            folder=folder,
            sends=tuple(
                SentItems(target=each.target, lane=each.lane, names=each.names)
                for each in found.transfers
                if each.source == device
            ),
            sources=tuple(
                Source(device=each.source, lane=each.lane) for each in found.transfers if each.target == device
            ),
            paced_bytes_per_s=rates.paced_bytes_per_s,
            backup_bytes_per_s=rates.backup_bytes_per_s,
            commit=commit if device in found.rolls_forward else None,
        )

    @property
    def peers(self) -> tuple[str, ...]:
        """Devices that items are sent to."""
        return tuple(dict.fromkeys(each.target for each in self.sends))


def send_backups(
    exchange: Exchange, order: Migration, version: Version, held: Mapping[Item, Tensors], backups: Iterable[SentBackup]
) -> None:
    """Send these backups, which are of what is held, and whose memory must not change.

    order: of the plan that runs. They go beside the messages of the rounds that follow.
    """
    for each in backups:
        for number, item in enumerate(sorted(each.items)):  # each by itself: one that is lost costs no other
            key = TransferKey(BACKUP_ITEMS, version.rounds, item.lane, 0, number, exchange.name)
            exchange.send_beside(each.holder, key, held[item], order.backup_bytes_per_s[each.holder])


def items_of(lane: str, arrival: Arrival) -> dict[Item, dict[str, torch.Tensor]]:
    """Return what a message of a lane's items carries."""
    found: dict[Item, dict[str, torch.Tensor]] = {}
    for name, tensor in arrival.tensors.items():
        found.setdefault(Item(lane, name_of(str(name))), {})[str(name)] = tensor
    return found


def send_items(exchange: Exchange, order: Migration, held: Mapping[Item, Tensors]) -> None:
    """Send what other devices need; the memory of it must not change until all devices have what they need."""
    for each in order.sends:
        parcels = list(_in_parcels(held[Item(each.lane, name)] for name in each.names))
        for number, tensors in enumerate(parcels):
            described = {"last": number + 1 == len(parcels)}
            exchange.send(each.target, _key(order, each.lane, number, exchange.name), tensors, described)


def receive_items(exchange: Exchange, order: Migration) -> dict[Item, dict[str, torch.Tensor]]:
    """Wait for what this device lacks; returns it by item and by the keys of a checkpoint."""
    found: dict[Item, dict[str, torch.Tensor]] = {}
    for each in order.sources:
        number, is_last = 0, False
        while not is_last:
            arrival = exchange.receive(_key(order, each.lane, number, each.device))
            found.update(items_of(each.lane, arrival))
            number, is_last = number + 1, bool(arrival.described["last"])
    return found


def _in_parcels(items: Iterable[Tensors]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the tensors of as many items at once as have PARCEL_BYTES, or of one."""
    parcel, room = dict[str, torch.Tensor](), PARCEL_BYTES
    for tensors in items:
        size_bytes = sum(tensor.nbytes for tensor in tensors.values())
        if parcel and size_bytes > room:
            yield parcel
            parcel, room = {}, PARCEL_BYTES
        parcel.update(tensors)
        room -= size_bytes
    if parcel:
        yield parcel


def _key(order: Migration, lane: str, number: int, sender: str) -> TransferKey:
    return TransferKey(MOVED_ITEMS, order.version.rounds, lane, 0, number, sender)


def describe_holding(version: Version, form: str, items: Iterable[Item], lanes: Sequence[str] = ()) -> dict[str, Any]:
    """Return a holding as a worker's message carries it. lanes: those in which all items are the same."""
    by_lane: dict[str, list[str]] = {}
    for item in items:
        by_lane.setdefault(item.lane, []).append(item.name)
    return {**describe_version(version), "form": form, "items": by_lane, "lanes": list(lanes)}


def describe_version(version: Version) -> dict[str, Any]:
    """Return a version as messages carry it."""
    return {"rounds": version.rounds, "attempt": version.attempt}


def parse_holdings(device: str, header: Mapping[str, Any]) -> tuple[Holding, ...]:
    """Return what a device says that it holds; Refused if that cannot be read."""
    try:
        return tuple(
            Holding(
                device=device,
                version=parse_version(each),
                form=str(each["form"]),
                items=frozenset(
                    Item(str(each_lane), str(name))
                    for lane, names in each["items"].items()
                    for each_lane in (lane, *each.get("lanes", ()))
                    for name in names
                ),
            )
            for each in header["holdings"]
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refused(f"device {device} says what it holds in words that cannot be read ({error})") from None


def parse_version(header: Mapping[str, Any]) -> Version:
    """Return the version of a message; KeyError, TypeError or ValueError if it is malformed."""
    coordinator, number = header["attempt"]
    return Version(int(header["rounds"]), Attempt(int(coordinator), int(number)))
