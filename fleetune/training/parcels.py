"""How what a device lacks of a version comes to it: in parcels, from other devices, or from a checkpoint.

Parcels between devices are sent at once, as both know of them. What no device can send is read from the checkpoint: by
a device that sees the files, once what it had is freed, else by the coordinator, which is asked for a parcel once the
one before is there: so each comes as fast as its own link allows, nothing queues up, and a device that is lost
meanwhile leaves nothing behind. In parcels, what has come is never there twice.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from fleetune.contracts.plan import Plan
from fleetune.models.weights import WeightReader
from fleetune.recovery.holdings import INITIAL, Restoration
from fleetune.recovery.transfers import DISK, Item
from fleetune.training.checkpoints import MODEL, StoredCheckpoint, Tensors
from fleetune.training.exchange import Exchange, TransferKey
from fleetune.training.migration import Migration, Parcel, items_of
from fleetune.training.roles import keeps_residuals
from fleetune.training.task import COORDINATOR

PARCEL_BYTES = 8 << 20
"""Most bytes of a parcel with more than one item."""
FETCH, PARCEL = "fetch", "parcel"
"""Kinds of the messages that ask the coordinator for a parcel, and that carry any."""


def parcels_of(found: Restoration, plan: Plan, sizes_bytes: Mapping[Item, int]) -> tuple[Parcel, ...]:
    """Return what travels in a restoration, in this order between any two devices; sizes_bytes: of each item.

    A device that reads of the checkpoint gets from there what its messages had lost, too.
    """
    made = list[Parcel]()

    def add(source: str, target: str, lane: str = "", names: Iterable[str] = ()) -> None:
        made.append(Parcel(number=len(made), source=source, target=target, lane=lane, names=tuple(names)))

    for each in found.transfers:
        names, room = list[str](), PARCEL_BYTES
        for name in each.names:
            size_bytes = sizes_bytes[Item(each.lane, name)]
            if names and size_bytes > room:
                add(each.source, each.target, each.lane, names)
                names, room = [], PARCEL_BYTES
            names.append(name)
            room -= size_bytes
        add(each.source, each.target, each.lane, names)
    for device in sorted({each.target for each in found.transfers if each.source == DISK}):
        if keeps_residuals(plan, device):
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
        if parcel.target != exchange.name or (parcel.source == DISK and order.folder is not None):
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
        exchange.send(device, _key(self.checkpoint.mark.round, parcel), _read(self.checkpoint, parcel))


class StoredItems:
    """What one device reads of its version itself: of the initial weights, or of the checkpoint's files."""

    def __init__(self, device: str, order: Migration, weights: Callable[[], WeightReader]) -> None:
        """TryAgain if a file is damaged."""
        self._initial = weights if order.version == INITIAL else None
        reads = [each for each in order.parcels if (each.source, each.target) == (DISK, device)]
        self._parcels = reads if order.folder is not None else []
        self._checkpoint = StoredCheckpoint.verified(Path(str(order.folder))) if self._parcels else None

    def read(self, wanted: Collection[Item]) -> Iterator[tuple[Item, Tensors]]:
        """Yield those of these items that are stored; TryAgain if a file cannot be read or lacks one."""
        if self._initial is not None and wanted:
            found = self._initial().read({item.name for item in wanted})
            yield from ((item, {MODEL + item.name: found[item.name]}) for item in wanted)
        for parcel in self._parcels:
            if self._checkpoint and any(Item(parcel.lane, name) in wanted for name in parcel.names):
                found_here = items_of(parcel.lane, _read(self._checkpoint, parcel))
                yield from ((item, tensors) for item, tensors in found_here.items() if item in wanted)

    def residuals(self) -> dict[str, torch.Tensor]:
        """Return what this device's messages had lost; empty unless it reads of a checkpoint with that."""
        found = [_read(self._checkpoint, each) for each in self._parcels if self._checkpoint and not each.names]
        return {str(key): tensor for tensors in found for key, tensor in tensors.items()}


def _read(checkpoint: StoredCheckpoint, parcel: Parcel) -> Tensors:
    if not parcel.names:
        return checkpoint.residuals(parcel.target)
    return _joined(checkpoint.read(parcel.lane, set(parcel.names)).values())


def _joined(items: Iterable[Tensors]) -> Tensors:
    return {key: tensor for tensors in items for key, tensor in tensors.items()}


def _key(rounds: int, parcel: Parcel) -> TransferKey:
    return TransferKey(PARCEL, rounds, parcel.lane, 0, parcel.number, parcel.source or COORDINATOR)
