"""Copies of state that a device holds beside its live one: its own snapshot, and backups for other devices."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fleetune.recovery.holdings import BACKUP, SNAPSHOT, Version
from fleetune.recovery.transfers import Item
from fleetune.training.checkpoints import Tensors


@dataclass(frozen=True, slots=True)
class Copy:
    """Items of one version in one form."""

    form: str
    version: Version
    items: dict[Item, Tensors]


class Copies:
    """Snapshots and backups of one device; nothing is freed but by `keep_only` and `clear`."""

    def __init__(self) -> None:
        self._held: list[Copy] = []

    def __iter__(self) -> Iterator[Copy]:
        return iter(self._held)

    def snapshot(self, version: Version, items: Mapping[Item, Tensors]) -> Mapping[Item, Tensors]:
        """Keep a copy of live state; return it, whose memory never changes."""
        copied = dict[Item, Tensors]()
        for item, tensors in items.items():
            copied[item] = {key: tensor.detach().clone() for key, tensor in tensors.items()}
        self._held.append(Copy(SNAPSHOT, version, copied))
        return copied

    def add_backup(self, version: Version, items: Mapping[Item, Tensors]) -> None:
        """Keep what another device has sent."""
        for copy in self._held:
            if (copy.form, copy.version) == (BACKUP, version):
                copy.items.update(items)
                return
        self._held.append(Copy(BACKUP, version, dict(items)))

    def at(self, version: Version) -> dict[Item, Tensors]:
        """Return everything that is held of a version."""
        return {item: tensors for copy in self._held if copy.version == version for item, tensors in copy.items.items()}

    def keep_only(self, version: Version) -> None:
        """Free all other versions."""
        self._held = [copy for copy in self._held if copy.version == version]

    def clear(self) -> None:
        """Free everything."""
        self._held = []
