"""Messages of some senders, kept back after their arrival: the latency of an emulated link.

Done by whoever receives, because rates can be shaped by any kernel but delays cannot; what is sent stays as it is.
Nobody polls: a receiver sleeps until something arrives or the first message that is held falls due.
"""

import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from fleetune.links.inbox import Arrived


class Held:
    """`arrived`, but a message of a sender in `delays_s` is there only so many seconds after it came.

    Messages of one sender keep their order, those of others pass. One thread waits at a time, others queue behind it.
    """

    def __init__(
        self,
        arrived: "queue.SimpleQueue[Arrived | None]",
        delays_s: Mapping[str, float],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._arrived, self._delays_s, self._clock_s = arrived, dict(delays_s), clock_s
        self._due: list[tuple[float, int, Arrived]] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def get(self, timeout_s: float | None) -> Arrived | None:
        """The next message that is due, `at_s` the moment it fell due; None after the end of `arrived`.

        Raises queue.Empty when there is none within `timeout_s` (None: wait for ever; 0: do not wait).
        """
        gives_up_s = None if timeout_s is None else self._clock_s() + timeout_s
        if not self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise queue.Empty
        try:
            return self._next(gives_up_s)
        finally:
            self._lock.release()

    def _next(self, gives_up_s: float | None) -> Arrived | None:
        while not (self._due and self._due[0][0] <= self._clock_s()):
            try:
                arrived = self._arrived.get(timeout=self._patience_s(gives_up_s))
            except queue.Empty:
                if gives_up_s is not None and self._clock_s() >= gives_up_s:
                    raise
                continue
            delay_s = self._delays_s.get(arrived.sender, 0.0) if arrived is not None else 0.0
            if arrived is None or delay_s == 0:
                return arrived
            due_s = arrived.at_s + delay_s
            heapq.heappush(self._due, (due_s, next(self._numbers), replace(arrived, at_s=due_s)))
        return heapq.heappop(self._due)[2]

    def _patience_s(self, gives_up_s: float | None) -> float | None:
        """How long the next arrival may be waited for; not negative, None for ever."""
        moments_s = [self._due[0][0]] if self._due else []
        if gives_up_s is not None:
            moments_s.append(gives_up_s)
        return max(0.0, min(moments_s) - self._clock_s()) if moments_s else None
