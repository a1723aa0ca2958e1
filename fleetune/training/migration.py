"""How a device comes to a version under a plan, and what it says that it holds: messages of recovery.

The coordinator sends each device its own `Migration`; tensors come in `parcels`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import torch

from fleetune.contracts.plan import Plan
from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.recovery.holdings import Attempt, Holding, SentBackup, Version
from fleetune.recovery.transfers import Item
from fleetune.training.checkpoints import Tensors, name_of
from fleetune.training.exchange import BACKUP_ITEMS, Exchange, TransferKey


@record
class Parcel:
    """Items of one lane that travel in one message."""

    number: int
    """In the restoration that it is part of."""
    source: str
    """DISK: the coordinator reads it from the checkpoint."""
    target: str
    lane: str = ""
    names: tuple[str, ...] = ()
    """None: it is what the target's messages had lost at the checkpoint."""


@record
class Migration:
    """What one device does to come to a version under a plan."""

    plan: Plan
    version: Version
    folder: str | None = None
    """Of the checkpoint that is read, on a device that sees its files; others ask the coordinator for parcels of it."""
    parcels: tuple[Parcel, ...] = ()
    """What it sends to others, and what comes to it."""
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


def items_of(lane: str, tensors: Tensors) -> dict[Item, Tensors]:
    """Return the items of a lane whose tensors these are."""
    found: dict[Item, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        found.setdefault(Item(lane, name_of(str(name))), {})[str(name)] = tensor
    return dict(found)


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
