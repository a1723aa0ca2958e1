"""The sending side: one DEALER for one peer."""

import threading
import time
from dataclasses import dataclass

import zmq
from typing_extensions import Buffer

from fleetune.errors import Refused, TryAgain
from fleetune.links.keys import KeyPair
from fleetune.links.message import SEQUENCE, Message, as_bytes, header_frame, part_frames

HEARTBEAT_MS = 500
HEARTBEAT_TIMEOUT_MS = 20_000
"""A process that stands still for less keeps its connections and loses nothing. Longer than any failure detector above
the links forgives: else a device that was only frozen would come back to connections that have lost messages."""
HANDSHAKE_MS = 5000
RECONNECT_MS, RECONNECT_MAX_MS = 50, 1000


def patient(socket: zmq.Socket[bytes]) -> None:
    """Options of every socket on a link: no loss by full queues, heartbeats, bounded handshakes and farewells."""
    socket.sndhwm = socket.rcvhwm = 0
    socket.linger = 0
    socket.heartbeat_ivl = HEARTBEAT_MS
    socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS
    socket.heartbeat_ttl = HEARTBEAT_TIMEOUT_MS
    socket.handshake_ivl = HANDSHAKE_MS


@dataclass(frozen=True, slots=True)
class Origin:
    """What every message of an endpoint says of where it comes from."""

    run: str
    session: str


class Peer:
    """Sends to one peer, from any thread; zmq's own threads encrypt and transport."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        name: str,
        keys: KeyPair,
        address: str,
        server_public: bytes,
        origin: Origin,
    ) -> None:
        self.name = name
        self.sent_bytes = 0
        self._origin = origin
        self._down_since_s = time.monotonic()
        self._lock = threading.Lock()
        self._sequence = 0
        self._connected = threading.Event()
        self._socket = context.socket(zmq.DEALER)
        patient(self._socket)
        self._socket.curve_serverkey = server_public
        self._socket.curve_publickey = keys.public
        self._socket.curve_secretkey = keys.secret
        self._socket.reconnect_ivl, self._socket.reconnect_ivl_max = RECONNECT_MS, RECONNECT_MAX_MS
        self.monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        """Read by the endpoint's IO thread, which calls `saw` with each event."""
        try:
            self._connect(address)
        except (zmq.ZMQError, ValueError) as error:
            self._socket.disable_monitor()
            self._socket.close()
            self.monitor.close()
            raise Refused(f"{name}: {address!r} cannot be connected to ({error}); give tcp://ADDRESS:PORT") from None

    def send(self, message: Message, limit_bytes: int) -> None:
        """Queue a message; returns at once. The parts' memory must stay as it is until the peer has received it."""
        views = [as_bytes(part) for part in message.parts]
        total = sum(view.nbytes for view in views)
        if total > limit_bytes:
            raise Refused(
                f"message {message.kind!r} to {self.name}: {total} bytes, allowed are {limit_bytes}; send it in pieces"
            )
        with self._lock:
            if self._socket.closed:
                raise TryAgain(f"message {message.kind!r} to {self.name}: the endpoint is closed")
            self.sent_bytes += self._put(message, views) + total

    def saw(self, event: int) -> None:
        """Keep track of whether the peer has admitted us; after a break, show it at once what it has missed."""
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            with self._lock:
                if self._sequence and not self._socket.closed:
                    self._put(Message(SEQUENCE, {}), [])
            self._connected.set()
        elif event == zmq.EVENT_DISCONNECTED and self.connected:  # not: another handshake that failed
            self._down_since_s = time.monotonic()
            self._connected.clear()

    def wait_connected(self, timeout_s: float) -> bool:
        """Whether the peer admits us within that time."""
        return self._connected.wait(timeout_s)

    @property
    def connected(self) -> bool:
        """Whether the peer has admitted us and the connection still stands."""
        return self._connected.is_set()

    @property
    def down_s(self) -> float:
        """For how many seconds there has been no connection; 0 while it stands."""
        return 0.0 if self.connected else time.monotonic() - self._down_since_s

    def close(self, linger_s: float) -> None:
        """Close; messages still queued get `linger_s` to leave (the wait is the context's)."""
        with self._lock:
            if not self._socket.closed:
                self._socket.disable_monitor()
                self._socket.close(linger=int(1000 * linger_s))

    def _connect(self, address: str) -> None:
        if not address.startswith("tcp://"):
            raise ValueError("not TCP")
        self._socket.connect(address)

    def _put(self, message: Message, views: list[memoryview]) -> int:
        """Queue the frames under the next sequence number; the bytes of the header. For whoever holds the lock."""
        sizes = [view.nbytes for view in views]
        origin = self._origin
        first = header_frame(message, sizes, run=origin.run, session=origin.session, sequence=self._sequence)
        frames: list[Buffer] = [first, *(chunk for view in views for chunk in part_frames(view))]
        self._socket.send_multipart(frames, copy=False)
        self._sequence += 1
        return len(first)
