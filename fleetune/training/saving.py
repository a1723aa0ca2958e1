"""When checkpoints are made, and how the coordinator has them made."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fleetune.contracts.run_config import TrainingRequest
from fleetune.training.checkpoints import FileDigest, Found, drop, folder_of, mark_whole

SAVING_S = 600.0
MOST_ROUNDS, LEAST_TIMES, MOST_S = 50, 4, 60.0
SHARE = 20.0
"""By time, a checkpoint is made after at least this many times what the last one took: at most 5 % go into them."""


class Savers(Protocol):
    """The workers, as far as checkpoints need them."""

    def gather(self, kind: str, devices: tuple[str, ...], patience_s: float) -> Mapping[str, Mapping[str, Any]]:
        """The header of one message of this kind from each device."""

    def collect(self, devices: tuple[str, ...], folder: Path) -> None:
        """Have what these devices have written to a folder here."""


class Saving:
    """The checkpoints of one attempt; `found` is what it goes on from, `clock` tells seconds."""

    def __init__(
        self, training: TrainingRequest, work: Path, found: Found | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._training, self._work, self._clock = training, work, clock
        self.newest = found
        self._last_s, self._took_s = clock(), 0.0

    def due(self, done: int) -> bool:
        """Whether the state after `done` rounds is to be kept.

        The last always. Else after `checkpoint_every_rounds`; where that is not given, after every 50 rounds or every
        quarter of them, whichever is less, and whenever the last one is more than a minute old.
        """
        every = self._training.checkpoint_every_rounds
        if done == self._training.rounds:
            return True
        if every is not None:
            return done % every == 0
        every = min(MOST_ROUNDS, -(-self._training.rounds // LEAST_TIMES))
        return done % every == 0 or self._clock() - self._last_s >= max(MOST_S, SHARE * self._took_s)

    def prepare(self, done: int) -> None:
        """Clear away what an attempt before left of the checkpoint that is made next."""
        drop(folder_of(self._work, done))

    def save(self, done: int, crew: Savers, leaders: tuple[str, ...], commits: str) -> None:
        """Wait until these devices have written their shards, bring them here and declare the checkpoint whole."""
        began_s = self._clock()
        saved = crew.gather("saved", leaders, SAVING_S)
        crew.collect(leaders, folder_of(self._work, done))
        shards = {str(h["file"]): FileDigest(bytes=int(h["bytes"]), sha256=str(h["sha256"])) for h in saved.values()}
        before = self.newest[0] if self.newest else None
        self.newest = mark_whole(self._work, done, shards, commits, before)
        self._last_s = self._clock()
        self._took_s = self._last_s - began_s
