"""One process on the links of a run: a door that others knock at, and a way to each of them.

Three things a user of an endpoint should know. A sent part is not copied: its memory must stay as it is until the peer
has received it. A message that was under way when a connection broke is lost; the connection comes back by itself,
later messages arrive, and `lost_from` counts the gap as soon as it stands again, so whoever waits looks at that, and at
`down_s` for a connection that does not come back. A process that stands still for seconds loses nothing by it.
Nothing but memory limits a sender: messages to a peer that does not read are kept until it does, or until `close`.
"""

import queue
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import zmq

from fleetune.contracts.record import not_negative
from fleetune.errors import Refused, TryAgain
from fleetune.links.held import Held
from fleetune.links.inbox import Arrived, Door, Inbox
from fleetune.links.keys import KeyPair, is_key
from fleetune.links.message import Message, Received, join_parts
from fleetune.links.peer import Origin, Peer

ZMQ_IO_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where an endpoint listens, and what it does with what comes."""

    bind: str = "tcp://127.0.0.1:*"
    address: str = ""
    """What others connect to, where that is not what `bind` came to."""
    max_message_bytes: int = 1 << 30
    delays_s: Mapping[str, float] = field(default_factory=dict)
    """sender -> seconds its messages are held back after their arrival: the latency of an emulated link."""

    def __post_init__(self) -> None:
        for sender, delay_s in self.delays_s.items():
            not_negative(f"link from {sender}", delay_s=delay_s)


class Endpoint:
    """Sends to and receives from the peers in `allowed` (name -> public key), encrypted with `keys`.

    `note` gets a sentence for every message or client that was refused; it is called from the IO thread.
    """

    def __init__(
        self,
        name: str,
        keys: KeyPair,
        allowed: Mapping[str, bytes],
        *,
        run: str,
        listen: Listen | None = None,
        note: Callable[[str], None],
    ) -> None:
        for peer, key in allowed.items():
            if not is_key(key):
                raise Refused(f"endpoint {name}: the public key of {peer} is not 40 bytes of Z85 text")
        self.name = name
        self.allowed = dict(allowed)
        listen = listen or Listen()
        self.limit_bytes = listen.max_message_bytes
        """Bytes of parts that one message may have."""
        self._keys, self._origin = keys, Origin(run, secrets.token_hex(16))
        self._peers: dict[str, Peer] = {}
        self._context = zmq.Context(io_threads=ZMQ_IO_THREADS)
        self._closed = False
        door = Door(run=run, allowed=self.allowed, limit_bytes=listen.max_message_bytes)
        try:
            self._inbox = Inbox(self._context, keys, listen.bind, door, note)
        except Refused:
            self._context.term()
            raise
        self.address = listen.address or self._inbox.address
        """What others connect to."""
        self._held = Held(self._inbox.arrived, listen.delays_s) if any(listen.delays_s.values()) else None

    def connect(self, peer: str, address: str, server_public: bytes) -> None:
        """Open the way to a peer; returns at once, messages wait until the peer has admitted us."""
        if peer in self._peers:
            raise Refused(f"endpoint {self.name}: {peer!r} is connected already")
        if not is_key(server_public):
            raise Refused(f"endpoint {self.name}: the public key of {peer} is not 40 bytes of Z85 text")
        if self._closed:
            raise TryAgain(f"endpoint {self.name}: it is closed")
        made = Peer(self._context, peer, self._keys, address, server_public, self._origin)
        self._peers[peer] = made
        self._inbox.watch(made.monitor, made.saw)

    def wait_connected(self, peer: str, timeout_s: float) -> None:
        """Return when the peer has admitted us; TryAgain when it has not within that time."""
        if not self._peer(peer).wait_connected(timeout_s):
            raise TryAgain(f"endpoint {self.name}: {peer} did not admit us within {timeout_s:g} s; is it running?")

    def connected(self, peer: str) -> bool:
        """Whether the connection to a peer stands at this moment."""
        return self._peer(peer).connected

    def send(self, peer: str, message: Message) -> None:
        """Queue a message for a peer, from any thread; see the module about the memory of its parts."""
        self._peer(peer).send(message, self.limit_bytes)

    def receive(self, timeout_s: float | None) -> Received | None:
        """The next message; None when there is none within `timeout_s` (None: wait for ever) or after `close`.

        TryAgain when nothing can arrive any more, because the thread that reads has failed.
        A message that is held back (`Listen.delays_s`) is not there before its time, which is then its `at_s`.
        """
        try:
            arrived = self._held.get(timeout_s) if self._held else self._next(timeout_s)
        except queue.Empty:
            return None
        if arrived is None:
            self._inbox.arrived.put(None)  # for other threads that wait
            if self._inbox.failure:
                raise TryAgain(f"endpoint {self.name}: {self._inbox.failure}")
            return None
        envelope = arrived.envelope
        parts = join_parts(envelope, arrived.frames)
        message = Message(envelope.kind, envelope.header, parts)
        return Received(sender=arrived.sender, message=message, at_s=arrived.at_s)

    @property
    def sent_bytes(self) -> dict[str, int]:
        """Bytes of headers and parts queued so far, by peer."""
        return {name: peer.sent_bytes for name, peer in self._peers.items()}

    @property
    def refused(self) -> int:
        """How many messages and clients were turned away."""
        return self._inbox.refused

    @property
    def lost(self) -> int:
        """How many messages to this endpoint are known to have been lost: later ones of the same sender have come."""
        return sum(self._inbox.lost_from.values())

    @property
    def lost_from(self) -> Mapping[str, int]:
        """`lost` by sender; only those that have lost some."""
        return self._inbox.lost_from

    def heard_s(self, sender: str) -> float | None:
        """When the newest message of a sender came, of this machine's monotonic clock; None before the first."""
        return self._inbox.heard_s.get(sender)

    @property
    def down_s(self) -> dict[str, float]:
        """Peers to which there is no connection, and for how many seconds already."""
        return {name: seconds for name, peer in list(self._peers.items()) if (seconds := peer.down_s)}

    def close(self, linger_s: float = 1.0) -> None:
        """End threads and sockets; messages still queued get `linger_s` to leave."""
        if self._closed:
            return
        self._closed = True
        for peer in self._peers.values():
            peer.close(linger_s)
        self._inbox.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next(self, timeout_s: float | None) -> Arrived | None:
        return self._inbox.arrived.get(timeout=timeout_s) if timeout_s != 0 else self._inbox.arrived.get_nowait()

    def _peer(self, name: str) -> Peer:
        if name not in self._peers:
            raise Refused(f"endpoint {self.name}: {name!r} is not connected; call connect first")
        return self._peers[name]
