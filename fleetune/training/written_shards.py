"""What devices say of the shards that they have written."""

from collections.abc import Iterable, Mapping
from typing import Any

from fleetune.recovery.holdings import Version
from fleetune.training.checkpoints import FileDigest


class WrittenShards:
    """Digests of the files of checkpoints that are not complete yet, by version."""

    def __init__(self) -> None:
        self._digests: dict[Version, dict[str, FileDigest]] = {}

    def add(self, version: Version, shards: Iterable[Mapping[str, Any]]) -> None:
        """Add what a device has written; LookupError, TypeError or ValueError if that cannot be read."""
        found = self._digests.setdefault(version, {})
        for each in shards:
            found[str(each["file"])] = FileDigest(bytes=int(each["bytes"]), sha256=str(each["sha256"]))

    def take(self, version: Version) -> dict[str, FileDigest]:
        """Return the digests of a version, by file."""
        return self._digests.pop(version)

    def clear(self) -> None:
        """Forget what was written in an older attempt."""
        self._digests.clear()
