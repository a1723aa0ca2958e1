"""The state of a worker after its last committed round, which may be written while the next round runs."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fleetune.codecs import ErrorFeedback
from fleetune.errors import TryAgain
from fleetune.training.checkpoints import FileDigest, StateHolder, write_residuals, write_shard
from fleetune.training.optimizer import NamedOptimizer

COMMIT_S = 10.0
"""Longest wait for a commit that is on its way to this worker or is just being applied."""


class Shard(NamedTuple):
    """A file of a checkpoint, written by one worker."""

    file: str
    digest: FileDigest


class CommittedState:
    """Parameters, committed statistics and optimizer state of a worker, by shard.

    A round changes gradients and working copies only; parameters move in `advance`, which excludes `write`. So any
    thread may write the state of the last committed round, however long the running round takes.
    """

    def __init__(
        self,
        shards: Mapping[str, tuple[StateHolder, NamedOptimizer]],
        done: int,
        residuals: Mapping[str, ErrorFeedback] | None = None,
    ) -> None:
        """shards: name of a file -> what it holds the state of. done: the number of rounds in the state.

        residuals: this device -> what its messages lose, if it has links with error feedback.
        """
        self._shards, self._done, self._residuals = shards, done, residuals or {}
        self._moved = threading.Condition()
        self._broken = False

    @property
    def is_saved_here(self) -> bool:
        """True if this worker writes a part of each checkpoint."""
        return bool(self._shards or self._residuals)

    @contextmanager
    def advance(self) -> Iterator[None]:
        """Move the state by one round; after an exception it is neither the old nor the new one."""
        with self._moved:
            self._broken = True
            yield
            self._broken = False
            self._done += 1
            self._moved.notify_all()

    def write(self, folder: Path, done: int) -> list[Shard]:
        """Write the state after `done` rounds; waits for a commit that has not arrived yet.

        TryAgain if the state is another one or the disk does not take it.
        """
        with self._moved:
            self._moved.wait_for(lambda: self._done >= done, COMMIT_S)
            if self._done != done or self._broken:
                raise TryAgain(f"{folder}: asked for the state after {done} rounds, this device has {self._done}")
            found = [Shard(*write_shard(folder, name, *held)) for name, held in self._shards.items()]
            kept = {device: feedback.state() for device, feedback in self._residuals.items()}
            return [*found, *(Shard(*write_residuals(folder, device, state)) for device, state in kept.items())]
