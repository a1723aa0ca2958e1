"""The sending side: one DEALER for one peer."""

import threading

import zmq
from typing_extensions import Buffer

from fleetune.errors import Refused, TryAgain
from fleetune.links.keys import KeyPair
from fleetune.links.message import Message, as_bytes, header_frame, part_frames

HEARTBEAT_MS = 500
HEARTBEAT_TIMEOUT_MS = 5000
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


class Peer:
    """Sends to one peer, from any thread; zmq's own threads encrypt and transport."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], name: str, keys: KeyPair, address: str, server_public: bytes
    ) -> None:
        self.name = name
        self.sent_bytes = 0
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
        self._socket.connect(address)

    def send(self, message: Message, run: str, session: str, limit_bytes: int) -> None:
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
            first = header_frame(message, [v.nbytes for v in views], run=run, session=session, sequence=self._sequence)
            frames: list[Buffer] = [first, *(chunk for view in views for chunk in part_frames(view))]
            self._socket.send_multipart(frames, copy=False)
            self._sequence += 1
            self.sent_bytes += len(first) + total

    def saw(self, event: int) -> None:
        """Keep track of whether the peer has admitted us."""
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._connected.set()
        elif event == zmq.EVENT_DISCONNECTED:
            self._connected.clear()

    def wait_connected(self, timeout_s: float) -> bool:
        """Whether the peer admits us within that time."""
        return self._connected.wait(timeout_s)

    @property
    def connected(self) -> bool:
        """Whether the peer has admitted us and the connection still stands."""
        return self._connected.is_set()

    def close(self, linger_s: float) -> None:
        """Close; messages still queued get `linger_s` to leave (the wait is the context's)."""
        with self._lock:
            if not self._socket.closed:
                self._socket.disable_monitor()
                self._socket.close(linger=int(1000 * linger_s))
