"""Peer: the sending side of an endpoint, one DEALER socket per peer; and pacing, as a share of a link allows.

A paced sender's messages leave no faster than a rate. A socket would send a message as one, so that whoever paces must
send small ones. The kernel's SO_MAX_PACING_RATE was rejected: zmq does not give its sockets away.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import zmq
from typing_extensions import Buffer

from fleetune.contracts.record import positive
from fleetune.errors import Refused, TryAgain
from fleetune.links.authentication import KeyPair
from fleetune.links.message import SEQUENCE, Message, as_bytes, header_frame, part_frames

PIECE_S = 0.02
"""Time on the link of one message: a share is kept within so long."""
MIN_PIECE_BYTES = 4096


def piece_bytes(bytes_per_s: float, limit_bytes: int) -> int:
    """Return the most bytes of one message at a rate."""
    return min(limit_bytes, max(MIN_PIECE_BYTES, int(bytes_per_s * PIECE_S)))


class PacedSender:
    """Sends messages in order, from a thread of its own, each after the time that those before it need."""

    def __init__(
        self,
        send: Callable[[Message], int],
        bytes_per_s: float,
        now_s: Callable[[], float] = time.monotonic,
        wait_s: Callable[[float], object] | None = None,
    ) -> None:
        """send: returns the bytes that a message takes on the link. wait_s: waits that many seconds; by default until
        `close`.
        """
        positive("pacing", bytes_per_s=bytes_per_s)
        self._send, self._bytes_per_s, self._now_s = send, bytes_per_s, now_s
        self._closed = threading.Event()
        self._wait_s = wait_s or self._closed.wait
        self._queue: queue.SimpleQueue[tuple[int, Message] | None] = queue.SimpleQueue()
        self._dropped = 0
        """Times that what was queued was dropped."""
        self._given_bytes = self._taken_bytes = 0  # each is changed by one thread alone
        self._thread = threading.Thread(target=self._run, name="paced", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Queue a message; the memory of its parts must not change until it is received."""
        self._given_bytes += _content_bytes(message)
        self._queue.put((self._dropped, message))

    @property
    def queued_bytes(self) -> int:
        """Bytes of the contents of messages that are queued."""
        return self._given_bytes - self._taken_bytes

    def drop_queued(self) -> None:
        """Send nothing of what is queued, which nobody wants any more; call it from the thread that sends."""
        self._dropped += 1

    def close(self) -> None:
        """End the thread; messages that are still queued are not sent."""
        self._closed.set()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        free_s = self._now_s()
        while (queued := self._queue.get()) is not None and not self._closed.is_set():
            dropped, message = queued
            size = _content_bytes(message)
            ahead_s = free_s - self._now_s()
            if ahead_s > 0 and dropped == self._dropped:
                self._wait_s(ahead_s)
            if self._closed.is_set():
                return
            sent = 0
            if dropped == self._dropped:
                with suppress(Refused):  # the peer has ended
                    sent = self._send(message)
            self._taken_bytes += size
            free_s = max(free_s, self._now_s()) + sent / self._bytes_per_s


def _content_bytes(message: Message) -> int:
    return sum(memoryview(part).nbytes for part in message.parts)


HEARTBEAT_MS = 500
HEARTBEAT_TIMEOUT_MS = 20_000
"""A process that is suspended for less than this keeps its connections and loses nothing. Must exceed the limit of the
failure detector: otherwise a suspended device could resume on connections that have lost messages."""
HANDSHAKE_MS = 5000
RECONNECT_MS, RECONNECT_MAX_MS = 50, 1000


Tap = Callable[[str, Sequence[Buffer]], None]
"""Receives (peer, frames) of every message before it is encrypted; the frames must not be kept, only copied."""


def set_socket_options(socket: zmq.Socket[bytes]) -> None:
    """Set the options common to all sockets of a link: unlimited queues, heartbeats, bounded handshake and linger."""
    socket.sndhwm = socket.rcvhwm = 0
    socket.linger = 0
    socket.heartbeat_ivl = HEARTBEAT_MS
    socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS
    socket.heartbeat_ttl = HEARTBEAT_TIMEOUT_MS
    socket.handshake_ivl = HANDSHAKE_MS


@dataclass(frozen=True, slots=True)
class MessageOrigin:
    """Run and session id that every message of an endpoint carries."""

    run: str
    session: str


class Peer:
    """Sends messages to one peer, from any thread; zmq's own threads encrypt and transmit."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        name: str,
        keys: KeyPair,
        address: str,
        server_public: bytes,
        origin: MessageOrigin,
    ) -> None:
        self.name = name
        self.sent_bytes = 0
        self.tap: Tap | None = None
        self._origin = origin
        self._down_since_s = time.monotonic()
        self._lock = threading.Lock()
        self._sequence = 0
        self._connected = threading.Event()
        self._socket = context.socket(zmq.DEALER)
        set_socket_options(self._socket)
        self._socket.curve_serverkey = server_public
        self._socket.curve_publickey = keys.public
        self._socket.curve_secretkey = keys.secret
        self._socket.reconnect_ivl, self._socket.reconnect_ivl_max = RECONNECT_MS, RECONNECT_MAX_MS
        self.monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        """Read by the endpoint's IO thread, which calls `on_event` with each event."""
        try:
            self._connect(address)
        except (zmq.ZMQError, ValueError) as error:
            self._socket.disable_monitor()
            self._socket.close()
            self.monitor.close()
            raise Refused(f"{name}: {address!r} cannot be connected to ({error}); give tcp://ADDRESS:PORT") from None

    def send(self, message: Message, limit_bytes: int) -> int:
        """Queue a message and return at once the bytes of its header and parts.

        The memory of its parts must not change until the peer has received it. Raises Refused above `limit_bytes` of
        parts, TryAgain after `close`.
        """
        views = [as_bytes(part) for part in message.parts]
        total = sum(view.nbytes for view in views)
        if total > limit_bytes:
            raise Refused(
                f"message {message.kind!r} to {self.name}: {total} bytes, allowed are {limit_bytes}; send it in pieces"
            )
        with self._lock:
            if self._socket.closed:
                raise TryAgain(f"message {message.kind!r} to {self.name}: the endpoint is closed")
            size = self._put(message, views) + total
            self.sent_bytes += size
            return size

    def on_event(self, event: int) -> None:
        """Track the connection state; after a reconnect, send an empty message whose number reveals losses."""
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            with self._lock:
                if self._sequence and not self._socket.closed:
                    self._put(Message(SEQUENCE, {}), [])
            self._connected.set()
        elif event == zmq.EVENT_DISCONNECTED and self.connected:  # not a failed handshake
            self._down_since_s = time.monotonic()
            self._connected.clear()

    def wait_connected(self, timeout_s: float) -> bool:
        """Return whether the peer admits this endpoint within `timeout_s` seconds."""
        return self._connected.wait(timeout_s)

    @property
    def connected(self) -> bool:
        """True while the peer has admitted this endpoint and the connection is up."""
        return self._connected.is_set()

    @property
    def down_s(self) -> float:
        """Seconds without a connection; 0 while it is up."""
        return 0.0 if self.connected else time.monotonic() - self._down_since_s

    def close(self, linger_s: float) -> None:
        """Close the socket; closing the context waits up to `linger_s` seconds for queued messages."""
        with self._lock:
            if not self._socket.closed:
                self._socket.disable_monitor()
                self._socket.close(linger=int(1000 * linger_s))

    def _connect(self, address: str) -> None:
        if not address.startswith("tcp://"):
            raise ValueError("not TCP")
        self._socket.connect(address)

    def _put(self, message: Message, views: list[memoryview]) -> int:
        """Queue the frames with the next sequence number and return the header's bytes; the caller holds the lock."""
        sizes = [view.nbytes for view in views]
        origin = self._origin
        first = header_frame(message, sizes, run=origin.run, session=origin.session, sequence=self._sequence)
        frames: list[Buffer] = [first, *(frame for view in views for frame in part_frames(view))]
        if self.tap is not None:
            self.tap(self.name, frames)
        self._socket.send_multipart(frames, copy=False)
        self._sequence += 1
        return len(first)
