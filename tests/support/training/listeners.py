"""What listens to the progress of a training, and disturbs it: kills its devices, asks for its end, slows it down."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fleetune.contracts.task import Progress
from tests.support.training.recording import Recording
from tests.support.training.runs import MICRO_BATCH, MICRO_BATCHES

SLOWED_S, PATIENCE_S = 0.5, 30.0
"""Seconds that a round waits at least while a device is away: few rounds outlast a worker's start on a busy machine."""


def killing(launcher: Recording, round: int, *devices: int, number: int = signal.SIGKILL) -> Progress:
    """Return a progress listener that sends a signal to workers when that many rounds are committed for the first time.

    A checkpoint is written beside the next round, so one of round r is there for certain once r + 2 are committed.

    devices: their numbers; none: all.
    """
    rounds_left = [round]

    def listen(what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
        if done / (MICRO_BATCH * MICRO_BATCHES) in rounds_left:
            rounds_left.clear()
            for device in devices or range(len(launcher.jobs)):
                os.kill(launcher.jobs[device].pid, number)

    return listen


class StopAfter:
    """A request to end that comes once that many rounds are committed; `listen` hears of them."""

    def __init__(self, rounds: int) -> None:
        self.asked = False
        self.asked_s = 0.0
        self._rounds = rounds

    def listen(self, what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
        """Progress of the training."""
        if done == self._rounds * MICRO_BATCH * MICRO_BATCHES:
            self.asked, self.asked_s = True, time.monotonic()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Interrupt nothing."""
        yield


def waiting_for(
    said: list[str], sentence: str, progress: Progress, slowed_s: float = SLOWED_S, patience_s: float = PATIENCE_S
) -> Progress:
    """Return a listener that slows rounds down until something was said, and then how the training goes on with it, so
    that the training does not end before: a device that is back has a model to load."""
    until_s: list[float] = []

    def goes_on() -> bool:
        return sentence in said and any(each.startswith("goes on from") for each in said[said.index(sentence) :])

    def listen(what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
        progress(what, done, total, unit, detail)
        until_s.append(time.monotonic() + patience_s)
        if not goes_on() and time.monotonic() < until_s[0]:
            time.sleep(slowed_s)

    return listen
