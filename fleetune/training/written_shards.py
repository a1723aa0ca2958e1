"""What devices say of the shards that they have written."""

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from fleetune.recovery.holdings import Version
from fleetune.training.checkpoints import FileDigest

DeviceShards = Mapping[str, Mapping[str, FileDigest]]
"""Device -> its files -> their digests."""


class WrittenShards:
    """Digests of the files of checkpoints that are not complete yet, by version and device."""

    def __init__(self) -> None:
        self._digests: dict[Version, dict[str, dict[str, FileDigest]]] = {}

    def add(self, device: str, version: Version, shards: Iterable[Mapping[str, Any]]) -> None:
        """Add what a device has written; LookupError, TypeError or ValueError if that cannot be read, or a name leads
        out of its folder."""
        found = self._digests.setdefault(version, {}).setdefault(device, {})
        for each in shards:
            name = str(each["file"])
            if name in ("", "..") or PurePath(name).name != name:
                raise ValueError(f"{name!r} is not the name of a file")
            found[name] = FileDigest(bytes=int(each["bytes"]), sha256=str(each["sha256"]))

    def take(self, version: Version) -> DeviceShards:
        """Return the digests of a version."""
        return self._digests.pop(version)

    def clear(self) -> None:
        """Forget what was written in an older attempt."""
        self._digests.clear()
