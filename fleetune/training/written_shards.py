"""What devices say of the shards that they have written, and the shards themselves."""

import errno
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

from fleetune.errors import TryAgain
from fleetune.exposed_folders import take_files
from fleetune.launching import Job
from fleetune.recovery.holdings import Version
from fleetune.training.checkpoints import FileDigest, checkpoint_folder, saving_folder, write_error

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


NO_PLAIN_FILE = (errno.EINVAL, errno.ENOTDIR, errno.ELOOP)


def take_shards(work: Path, round: int, device: str, job: Job, names: Iterable[str]) -> None:
    """Move the shards of a device, which alone can write where it has put them, into the checkpoint of a round.

    TryAgain if one is no plain file, or the disk takes no more.
    """
    written, into = saving_folder(work, device, round), checkpoint_folder(work, round)
    try:
        into.mkdir(parents=True, exist_ok=True)
        job.collect(written, into)
        take_files(names, written, into)
    except OSError as error:
        if error.errno in NO_PLAIN_FILE:
            raise TryAgain(f"device {device} has put something else in the place of its shards ({error})") from None
        raise write_error(into, error) from None
