"""A checkpoint for devices that cannot read the coordinator's files: its tensors, in parcels.

A device asks for a parcel once it has the one before. So each comes as fast as its own link allows, nothing queues up,
and a device that is lost meanwhile leaves nothing behind. What is read is checked against its digests first.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fleetune.recovery.protocol import Layout
from fleetune.recovery.transfers import Item
from fleetune.training.checkpoints import CheckpointMark, Tensors, read_residuals, read_tensors, verified_mark
from fleetune.training.exchange import Arrival, Exchange, TransferKey
from fleetune.training.migration import PARCEL_BYTES, Migration, Parcel, items_of
from fleetune.training.roles import keeps_residuals
from fleetune.training.task import COORDINATOR

FETCH, PARCEL = "fetch", "parcel"
"""Kinds of the messages that ask for a parcel, and that carry it."""


@dataclass(frozen=True, slots=True)
class StoredParcels:
    """The parcels of one checkpoint, by device."""

    folder: Path
    mark: CheckpointMark
    orders: Mapping[str, Migration]

    @staticmethod
    def of(folder: Path, layout: Layout, orders: Mapping[str, Migration], sizes: Mapping[Item, int]) -> "StoredParcels":
        """Return the parcels of these devices, and orders that name them instead of a folder.

        orders: device -> its order to read the checkpoint. sizes: bytes of each item. TryAgain if a file is damaged.
        """
        wanted = {device: set[Item]() for device in orders}
        for need in layout.needs:
            if need.device in wanted:
                wanted[need.device] |= need.items
        sent = {
            device: replace(
                order,
                from_disk=False,
                folder=None,
                parcels=tuple(_parcels(sorted(wanted[device]), sizes)),
                residuals=keeps_residuals(order.plan, device),
            )
            for device, order in orders.items()
        }
        return StoredParcels(folder, verified_mark(folder), sent)

    def send(self, exchange: Exchange, device: str, number: int) -> None:
        """Send a device one of its parcels; those behind the last one are what its messages have lost.

        LookupError if it has no such parcel.
        """
        order = self.orders[device]
        if 0 <= number < len(order.parcels):
            parcel = order.parcels[number]
            tensors: Tensors = {
                key: tensor
                for found in read_tensors(self.folder, parcel.lane, set(parcel.names), self.mark).values()
                for key, tensor in found.items()
            }
        elif number == len(order.parcels) and order.residuals:
            tensors = read_residuals(self.folder, device, self.mark)
        else:
            raise LookupError(f"no parcel {number}")
        exchange.send(device, _key(order, number), tensors)


def fetch_items(exchange: Exchange, order: Migration) -> dict[Item, dict[str, torch.Tensor]]:
    """Ask for all parcels of this device's items, and wait for each; returns them as `items_of` does."""
    found: dict[Item, dict[str, torch.Tensor]] = {}
    for number, parcel in enumerate(order.parcels):
        found.update(items_of(parcel.lane, _fetch(exchange, order, number)))
    return found


def fetch_residuals(exchange: Exchange, order: Migration) -> dict[str, torch.Tensor]:
    """Ask for what this device's messages had lost at the checkpoint; empty without error feedback."""
    if not order.residuals:
        return {}
    return {str(key): tensor for key, tensor in _fetch(exchange, order, len(order.parcels)).tensors.items()}


def _fetch(exchange: Exchange, order: Migration, number: int) -> Arrival:
    exchange.send_control(FETCH, {"attempt": exchange.attempt, "parcel": number})
    return exchange.receive(_key(order, number))


def _key(order: Migration, number: int) -> TransferKey:
    return TransferKey(PARCEL, order.version.rounds, "", 0, number, COORDINATOR)


def _parcels(items: Iterable[Item], sizes_bytes: Mapping[Item, int]) -> Iterator[Parcel]:
    """Yield the items in parcels of one lane each. items: sorted."""
    lane, names, room = "", list[str](), 0
    for item in items:
        if names and (item.lane != lane or sizes_bytes[item] > room):
            yield Parcel(lane=lane, names=tuple(names))
            names = []
        if not names:
            lane, room = item.lane, PARCEL_BYTES
        names.append(item.name)
        room -= sizes_bytes[item]
    if names:
        yield Parcel(lane=lane, names=tuple(names))
