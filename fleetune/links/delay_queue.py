"""Delay queue: the receiver holds messages back to emulate the latency of a link.

The receiver adds the delay because every kernel can shape rates, but not every kernel can delay packets. There is no
polling: a receiver sleeps until a message arrives or the first delayed message is due.
"""

import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from fleetune.links.inbox import InboundMessage


class DelayQueue:
    """Wraps the queue `arrived` and delays every message by its sender's seconds in `delays_s` after its arrival.

    Messages of one sender keep their order; messages of other senders can overtake them. Safe for several receiving
    threads, of which one waits at a time.
    """

    def __init__(
        self,
        arrived: "queue.SimpleQueue[InboundMessage | None]",
        delays_s: Mapping[str, float],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._arrived, self._delays_s, self._clock_s = arrived, dict(delays_s), clock_s
        self._due: list[tuple[float, int, InboundMessage]] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def get(self, timeout_s: float | None) -> InboundMessage | None:
        """Return the next due message, with `at_s` set to its due time; None after the end of `arrived`.

        Raises queue.Empty if no message is due within `timeout_s` (None: wait forever; 0: do not wait).
        """
        deadline_s = None if timeout_s is None else self._clock_s() + timeout_s
        if not self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise queue.Empty
        try:
            return self._next(deadline_s)
        finally:
            self._lock.release()

    def _next(self, deadline_s: float | None) -> InboundMessage | None:
        while not (self._due and self._due[0][0] <= self._clock_s()):
            try:
                arrived = self._arrived.get(timeout=self._wait_s(deadline_s))
            except queue.Empty:
                if deadline_s is not None and self._clock_s() >= deadline_s:
                    raise
                continue
            delay_s = self._delays_s.get(arrived.sender, 0.0) if arrived is not None else 0.0
            if arrived is None or delay_s == 0:
                return arrived
            due_s = arrived.at_s + delay_s
            heapq.heappush(self._due, (due_s, next(self._numbers), replace(arrived, at_s=due_s)))
        return heapq.heappop(self._due)[2]

    def _wait_s(self, deadline_s: float | None) -> float | None:
        """Maximum seconds to wait for the next arrival, at least 0; None: forever."""
        moments_s = [self._due[0][0]] if self._due else []
        if deadline_s is not None:
            moments_s.append(deadline_s)
        return max(0.0, min(moments_s) - self._clock_s()) if moments_s else None
