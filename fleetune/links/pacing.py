"""Pacing: messages to one peer leave no faster than a rate, as a share of a link allows.

A socket would send a message as one, so that whoever paces must send small ones. The kernel's SO_MAX_PACING_RATE was
rejected: zmq does not give its sockets away.
"""

import queue
import threading
import time
from collections.abc import Callable

from fleetune.contracts.record import positive
from fleetune.links.message import Message

CHUNK_S = 0.02
"""Time on the link of one message: a share is kept within so long."""
MIN_CHUNK_BYTES = 4096


def chunk_bytes(bytes_per_s: float, limit_bytes: int) -> int:
    """Return the most bytes of one message at a rate."""
    return min(limit_bytes, max(MIN_CHUNK_BYTES, int(bytes_per_s * CHUNK_S)))


class PacedSender:
    """Sends messages in order, from a thread of its own, each after the time that those before it need."""

    def __init__(
        self,
        send: Callable[[Message], None],
        bytes_per_s: float,
        now_s: Callable[[], float] = time.monotonic,
        wait_s: Callable[[float], object] | None = None,
    ) -> None:
        """wait_s: waits that many seconds; by default until `close`."""
        positive("pacing", bytes_per_s=bytes_per_s)
        self._send, self._bytes_per_s, self._now_s = send, bytes_per_s, now_s
        self._closed = threading.Event()
        self._wait_s = wait_s or self._closed.wait
        self._queue: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="paced", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Queue a message; the memory of its parts must not change until it is received."""
        self._queue.put(message)

    def close(self) -> None:
        """End the thread; messages that are still queued are not sent."""
        self._closed.set()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        free_s = self._now_s()
        while (message := self._queue.get()) is not None and not self._closed.is_set():
            ahead_s = free_s - self._now_s()
            if ahead_s > 0:
                self._wait_s(ahead_s)
            if self._closed.is_set():
                return
            self._send(message)
            size = sum(memoryview(part).nbytes for part in message.parts)
            free_s = max(free_s, self._now_s()) + size / self._bytes_per_s
