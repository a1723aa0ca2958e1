"""How what a device lacks of a version comes to it: in parcels, from other devices, or from a checkpoint.

Parcels between devices are sent at once, as both know of them. What no device can send is read from the checkpoint: by
a device that sees the files, once what it had is freed, else by the coordinator, which is asked for a parcel once the
one before is there: so each comes as fast as its own link allows, nothing queues up, and a device that is lost
meanwhile leaves nothing behind. In parcels, what has come is never there twice.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from fleetune.contracts.plan import Plan
from fleetune.models.weights import WeightReader
from fleetune.recovery.holdings import INITIAL, Restoration
from fleetune.recovery.transfers import DISK, Item
from fleetune.training.checkpoints import MODEL, StoredCheckpoint, Tensors, keeps_residuals
from fleetune.training.exchange import Exchange, TransferKey
from fleetune.training.migration import Migration, Parcel, items_of
from fleetune.training.task import COORDINATOR

PARCEL_BYTES = 8 << 20
"""Most bytes of a parcel with more than one item."""
FETCH, PARCEL = "fetch", "parcel"
"""Kinds of the messages that ask the coordinator for a parcel, and that carry any."""


def parcels_of(
    found: Restoration, plan: Plan, sizes_bytes: Mapping[Item, int], away: Collection[str] = ()
) -> tuple[Parcel, ...]:
    """Return what travels in a restoration, in this order between any two devices.

    sizes_bytes: of each item. away: devices that do not see the checkpoint's files. Where it is read, they also get
    what their messages had lost.
    """
    made = list[Parcel]()

    def add(source: str, target: str, lane: str = "", names: Iterable[str] = ()) -> None:
        made.append(Parcel(number=len(made), source=source, target=target, lane=lane, names=tuple(names)))

    for each in (each for each in found.transfers if each.source != DISK or each.target in away):
        names, room = list[str](), PARCEL_BYTES
        for name in each.names:
            size_bytes = sizes_bytes[Item(each.lane, name)]
            if names and size_bytes > room:
                add(each.source, each.target, each.lane, names)
                names, room = [], PARCEL_BYTES
            names.append(name)
            room -= size_bytes
        add(each.source, each.target, each.lane, names)
    for device in plan.devices if found.reads_checkpoint else ():
        if device in away and keeps_residuals(plan, device):
            add(DISK, device)
    return tuple(made)


def send_parcels(exchange: Exchange, order: Migration, held: Mapping[Item, Tensors]) -> None:
    """Send others theirs of what is held; the memory of it must not change until all devices have what they need."""
    for parcel in order.parcels:
        if parcel.source == exchange.name:
            items = (held[Item(parcel.lane, name)] for name in parcel.names)
            exchange.send(parcel.target, _key(order.version.rounds, parcel), _joined(items))


class Received(NamedTuple):
    """What has come to a device."""

    items: dict[Item, Tensors]
    residuals: dict[str, torch.Tensor]
    """What its messages had lost."""


def receive_parcels(exchange: Exchange, order: Migration) -> Received:
    """Wait for what other devices and the coordinator send this one."""
    found = Received({}, {})
    for parcel in order.parcels:
        if parcel.target != exchange.name:
            continue
        if parcel.source == DISK:
            exchange.send_control(FETCH, {"attempt": exchange.attempt, "parcel": parcel.number})
        tensors = exchange.receive(_key(order.version.rounds, parcel)).tensors
        if parcel.names:
            found.items.update(items_of(parcel.lane, tensors))
        else:
            found.residuals.update({str(key): tensor for key, tensor in tensors.items()})
    return found


@dataclass(frozen=True, slots=True)
class StoredParcels:
    """What the coordinator sends of a checkpoint to devices that do not see its files."""

    checkpoint: StoredCheckpoint
    parcels: Mapping[int, Parcel]
    """By number."""

    def send(self, exchange: Exchange, device: str, number: int) -> None:
        """Send a device one of its parcels; LookupError if it has no such parcel."""
        parcel = self.parcels[number]
        if parcel.target != device:
            raise LookupError(f"parcel {number} is for {parcel.target}")
        items = (tensors for _, tensors in self.checkpoint.read(parcel.lane, parcel.names))
        tensors = _joined(items) if parcel.names else self.checkpoint.residuals(device)
        exchange.send(device, _key(self.checkpoint.mark.round, parcel), tensors)


class StoredItems:
    """What one device reads of its version itself: of the initial weights, or of the checkpoint's files."""

    def __init__(self, device: str, order: Migration, weights: Callable[[], WeightReader]) -> None:
        self._device, self._order, self._weights = device, order, weights

    @cached_property
    def _checkpoint(self) -> StoredCheckpoint:
        return StoredCheckpoint.verified(Path(str(self._order.folder)))

    def read(self, wanted: Collection[Item]) -> Iterator[tuple[Item, Tensors]]:
        """Yield those of these items that are stored here; TryAgain if a file is damaged or lacks one."""
        if wanted and self._order.version == INITIAL:
            found = self._weights().read({item.name for item in wanted})
            yield from ((item, {MODEL + item.name: found[item.name]}) for item in wanted)
        elif self._order.folder is not None:
            for lane in sorted({item.lane for item in wanted}):
                names = {item.name for item in wanted if item.lane == lane}
                yield from ((Item(lane, name), tensors) for name, tensors in self._checkpoint.read(lane, names))

    def residuals(self) -> dict[str, torch.Tensor]:
        """Return what this device's messages had lost at a checkpoint that it sees; TryAgain if a file is damaged."""
        fed = keeps_residuals(self._order.plan, self._device) and self._order.folder is not None
        return self._checkpoint.residuals(self._device) if fed else {}


def _joined(items: Iterable[Tensors]) -> Tensors:
    return {key: tensor for tensors in items for key, tensor in tensors.items()}


def _key(rounds: int, parcel: Parcel) -> TransferKey:
    return TransferKey(PARCEL, rounds, parcel.lane, 0, parcel.number, parcel.source or COORDINATOR)
