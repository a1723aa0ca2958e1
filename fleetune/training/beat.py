"""Signs of life between a worker and its coordinator, beside whatever else they do."""

import threading
import time
from collections.abc import Callable
from typing import Self

from fleetune.links.endpoint import Endpoint
from fleetune.monitoring import FailureDetector
from fleetune.training.exchange import Exchange

BEAT_S = 0.5
FIRST_BEATS, FIRST_BEAT_S = 10, 0.05
"""The first ones come quickly, for they measure the clocks before the first round."""
ABANDONED_S = 60.0
LOADING, COMPUTING, SAVING, WAITING = "loading", "computing", "saving", "waiting"


class Every:
    """Calls `act` every few seconds in a thread of its own, until the end of the `with`."""

    def __init__(self, act: Callable[[], None], interval_s: Callable[[], float]) -> None:
        self._act, self._interval_s = act, interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="beat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s()):
            self._act()


class Beat:
    """A worker's: what it does, whom it waits for, and what its links have lost; `doing` is set by who does it.

    `abandoned` is called, with a sentence, once the coordinator has said nothing for ABANDONED_S: it has ended, or
    cannot be reached, and nobody else would end this process.
    """

    def __init__(
        self,
        exchange: Exchange,
        endpoint: Endpoint,
        coordinator: str,
        abandoned: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.doing = LOADING
        self._exchange, self._endpoint, self._clock = exchange, endpoint, clock
        self._coordinator, self._abandoned = coordinator, abandoned
        self._watch = FailureDetector([coordinator], ABANDONED_S, clock)
        self._progress = self._beats = 0
        exchange.beaten = self._count

    def running(self) -> Every:
        """Beats until the end of the `with`."""
        return Every(self.beat, lambda: FIRST_BEAT_S if self._beats < FIRST_BEATS else BEAT_S)

    def beat(self) -> None:
        """Say that the process lives, and look whether the coordinator does."""
        self._beats += 1
        waits_for = self._exchange.waits_for
        state = {
            "progress": self._progress,
            "doing": WAITING if waits_for else self.doing,
            "waits_for": waits_for,
            "sent_s": self._clock(),
            "lost": dict(self._endpoint.lost_from),
            "down": self._endpoint.down_s,
        }
        self._exchange.tell("beat", state)
        heard_s = self._endpoint.heard_s(self._coordinator)
        if heard_s is not None:
            self._watch.beat(self._coordinator, 0, at_s=heard_s)
        for concern in self._watch.suspicions():
            self._abandoned(
                f"nothing was heard from the {self._coordinator} for {concern.since_s:.0f} s: "
                "it has ended or cannot reach this device, so the worker ends"
            )

    def _count(self) -> None:
        self._progress += 1
