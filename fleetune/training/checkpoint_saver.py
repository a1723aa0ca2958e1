"""When a training is saved, and how what devices have written becomes a checkpoint."""

import errno
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import TryAgain
from fleetune.exposed_folders import take_files
from fleetune.launching import Job
from fleetune.recovery.holdings import Version
from fleetune.training.checkpoints import (
    FileDigest,
    StoredCheckpoint,
    checkpoint_folder,
    delete_checkpoint,
    mark_complete,
    saving_folder,
    stored_rounds,
    write_error,
)

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


MAX_INTERVAL_ROUNDS, MIN_CHECKPOINTS, INTERVAL_S = 50, 4, 60.0
MIN_INTERVAL_RATIO = 20.0
"""Least interval between checkpoints in multiples of the last one's duration: they take at most 5 % of the time."""


class CheckpointSaver:
    """Schedules and saves the checkpoints of one attempt.

    found: the checkpoint that the attempt resumes from. average_every_rounds: the plan's. clock: returns seconds.
    """

    def __init__(
        self,
        training: TrainingRequest,
        work: Path,
        found: StoredCheckpoint | None,
        average_every_rounds: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._training, self._work, self._clock = training, work, clock
        self._average_every_rounds, self._waits = average_every_rounds, False
        self.also_kept: Callable[[], Collection[int]] = lambda: ()
        """Rounds whose checkpoints somebody needs besides the two newest."""
        self.newest = found
        before = (done for done in stored_rounds(work) if found and done <= found.mark.round)
        self._averaged: int | None = max(filter(self._is_average, before), default=None)
        self._last_s, self._took_s, self._began_s = clock(), 0.0, 0.0

    def due(self, done: int) -> bool:
        """Return whether the state after `done` rounds is to be saved.

        The last round is always saved. Else every `checkpoint_every_rounds` rounds; without that setting, every 50
        rounds or every quarter of all rounds, whichever is less, and whenever the last checkpoint is older than a
        minute; where lanes are averaged, after the next average, from which any plan can go on, if one comes soon.
        """
        every = self._training.checkpoint_every_rounds
        if done == self._training.rounds:
            return True
        if every is not None:
            return done % every == 0
        every = min(MAX_INTERVAL_ROUNDS, -(-self._training.rounds // MIN_CHECKPOINTS))
        old_s, limit_s = self._clock() - self._last_s, max(INTERVAL_S, MIN_INTERVAL_RATIO * self._took_s)
        if not 0 < self._average_every_rounds <= every:
            return done % every == 0 or old_s >= limit_s
        self._waits |= done % every == 0 or old_s >= limit_s
        return self._waits and (self._is_average(done) or old_s >= 2 * limit_s)

    @property
    def kept(self) -> set[int]:
        """Rounds whose checkpoints are kept besides the two newest: `also_kept`, and that of the newest average."""
        return {*self.also_kept(), *(() if self._averaged is None else (self._averaged,))}

    def _is_average(self, done: int) -> bool:
        return bool(self._average_every_rounds) and done % self._average_every_rounds == 0

    def prepare(self, done: int) -> None:
        """Delete what an earlier attempt left in the next checkpoint's folder; its writing begins now."""
        self._waits = False
        delete_checkpoint(checkpoint_folder(self._work, done))
        self._began_s = self._clock()

    def complete(self, done: int, shards: Mapping[str, FileDigest], commits: str) -> None:
        """Mark the state after `done` rounds as complete, whose shards all lie in its folder.

        shards: file -> digest, from its writer. commits: the lines of the commit log up to there.
        """
        self._averaged = done if self._is_average(done) else self._averaged
        kept = {*self.kept, *([self.newest.mark.round] if self.newest else [])}
        self.newest = mark_complete(self._work, done, shards, commits, kept)
        self.put_off()

    def put_off(self) -> None:
        """Count the interval to the next checkpoint from now, whether this one is complete or has failed."""
        self._last_s, self._waits = self._clock(), False
        self._took_s = self._last_s - self._began_s
