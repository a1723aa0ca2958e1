"""Endpoint: one process on the links of a run, with a listening inbox and one connection to each peer.

Guarantees and their limits:
- Sent parts are not copied: their memory must not change until the peer has received them.
- Messages in transit are lost when a connection breaks. It reconnects by itself, and `lost_from` counts the lost
  messages as soon as it is back; `down_s` shows connections that do not come back. A process that is suspended for
  seconds loses nothing.
- Only memory limits a sender: messages to a peer that does not read are queued until it reads, or until `close`.
"""

import queue
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

import zmq

from fleetune.contracts.record import not_negative
from fleetune.errors import Refused, TryAgain
from fleetune.links.authentication import KeyPair, is_curve_key
from fleetune.links.inbox import Admission, DelayQueue, InboundMessage, Inbox, Wake
from fleetune.links.message import Message, Received, join_parts
from fleetune.links.peer import MessageOrigin, Peer, Tap

ZMQ_IO_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Listening address of an endpoint, and limits and delays of incoming messages."""

    bind: str = "tcp://127.0.0.1:*"
    address: str = ""
    """Address that peers connect to, if it differs from the bound one."""
    max_message_bytes: int = 1 << 30
    delays_s: Mapping[str, float] = field(default_factory=dict)
    """sender -> seconds to delay its messages after arrival: the latency of an emulated link."""
    urgent: str = ""
    """Kind of messages that `receive_urgent` returns, without a delay, while another thread is in `receive`."""

    def __post_init__(self) -> None:
        for sender, delay_s in self.delays_s.items():
            not_negative(f"link from {sender}", delay_s=delay_s)


class Endpoint:
    """Sends to and receives from the peers in `allowed` (name -> public key), encrypted with `keys`.

    `note` receives a sentence for every refused message or client; the IO thread calls it.
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
            if not is_curve_key(key):
                raise Refused(f"endpoint {name}: the public key of {peer} is not 40 bytes of Z85 text")
        self.name = name
        self.allowed = dict(allowed)
        listen = listen or Listen()
        self.limit_bytes = listen.max_message_bytes
        """Maximum bytes of the parts of one message, sent or received."""
        self._keys, self._origin = keys, MessageOrigin(run, secrets.token_hex(16))
        self._peers: dict[str, Peer] = {}
        self._context = zmq.Context(io_threads=ZMQ_IO_THREADS)
        self._closed = False
        self.tap: Tap | None = None
        """Receives what is sent to peers that are connected from now on, before it is encrypted."""
        self.wakes_on_disconnect = False
        """True if the end of a connection ends the wait of the thread that receives, as `wake` does."""
        admission = Admission(run=run, allowed=self.allowed, limit_bytes=listen.max_message_bytes, urgent=listen.urgent)
        try:
            self._inbox = Inbox(self._context, keys, listen.bind, admission, note)
        except Refused:
            self._context.term()
            raise
        self.address = listen.address or self._inbox.address
        """Address that peers connect to."""
        self._delay_queue = DelayQueue(self._inbox.arrived, listen.delays_s) if any(listen.delays_s.values()) else None

    def connect(self, peer: str, address: str, server_public: bytes) -> None:
        """Start connecting to a peer and return at once; messages are queued until the peer admits this endpoint."""
        if peer in self._peers:
            raise Refused(f"endpoint {self.name}: {peer!r} is connected already")
        if not is_curve_key(server_public):
            raise Refused(f"endpoint {self.name}: the public key of {peer} is not 40 bytes of Z85 text")
        if self._closed:
            raise TryAgain(f"endpoint {self.name}: it is closed")
        made = Peer(self._context, peer, self._keys, address, server_public, self._origin)
        made.tap = self.tap
        self._peers[peer] = made
        self._inbox.add_monitor(made.monitor, lambda event: self._on_event(made, event))

    def disconnect(self, peer: str) -> None:
        """Drop the connection to a peer that has ended, and what is queued for it; it may be connected anew."""
        made = self._peers.pop(peer, None)
        if made is not None:
            made.close(linger_s=0.0)
            self._inbox.remove_monitor(made.monitor)

    def wait_connected(self, peer: str, timeout_s: float) -> None:
        """Wait until the peer admits this endpoint; TryAgain after `timeout_s` seconds."""
        if not self._peer(peer).wait_connected(timeout_s):
            raise TryAgain(f"endpoint {self.name}: {peer} did not admit us within {timeout_s:g} s; is it running?")

    def connected(self, peer: str) -> bool:
        """Return whether the connection to a peer is up."""
        return self._peer(peer).connected

    def send(self, peer: str, message: Message) -> int:
        """Queue a message for a peer, from any thread, and return the bytes of its header and parts.

        The memory of its parts must not change until it is received.
        """
        return self._peer(peer).send(message, self.limit_bytes)

    def wake(self) -> None:
        """End the wait of the thread that receives, or else the next one, without a message; from any thread."""
        self._inbox.arrived.put(Wake())

    def receive(self, timeout_s: float | None) -> Received | None:
        """Return the next message; None if none arrives within `timeout_s` (None: wait forever) or after `close`.

        None too after `wake`.

        Raises TryAgain if the IO thread has failed, so that nothing can arrive any more. A delayed message
        (`Listen.delays_s`) arrives when its delay is over, which is also its `at_s`.
        """
        try:
            arrived = self._delay_queue.get(timeout_s) if self._delay_queue else self._next(timeout_s)
        except queue.Empty:
            return None
        if isinstance(arrived, Wake):
            return None
        if arrived is None:
            self._inbox.arrived.put(None)  # wakes the next waiting thread
            if self._inbox.failure:
                raise TryAgain(f"endpoint {self.name}: {self._inbox.failure}")
            return None
        return _received(arrived)

    def receive_urgent(self) -> Received | None:
        """Wait for the next message of the kind `Listen.urgent`; None after `close`. For one thread."""
        arrived = self._inbox.urgent.get()
        return None if arrived is None else _received(arrived)

    @property
    def sent_bytes(self) -> dict[str, int]:
        """Bytes of headers and parts queued so far, per peer."""
        return {name: peer.sent_bytes for name, peer in list(self._peers.items())}

    @property
    def refused(self) -> int:
        """Number of refused messages and clients."""
        return self._inbox.refused

    @property
    def lost(self) -> int:
        """Number of messages to this endpoint known to be lost, because later ones of the same sender arrived."""
        return sum(self._inbox.lost_from.values())

    @property
    def lost_from(self) -> Mapping[str, int]:
        """`lost` per sender; senders without losses are absent."""
        return self._inbox.lost_from

    def last_arrival_s(self, sender: str) -> float | None:
        """Return the arrival of a sender's newest message by this machine's monotonic clock; None before the first."""
        return self._inbox.last_arrival_s.get(sender)

    @property
    def down_s(self) -> dict[str, float]:
        """Seconds without a connection, for every peer that is currently not connected."""
        return {name: seconds for name, peer in list(self._peers.items()) if (seconds := peer.down_s)}

    def close(self, linger_s: float = 1.0) -> None:
        """Stop all threads and close all sockets; queued messages get `linger_s` seconds to be sent."""
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

    def _on_event(self, peer: Peer, event: int) -> None:
        was_connected = peer.connected
        peer.on_event(event)
        if self.wakes_on_disconnect and was_connected and not peer.connected:
            self.wake()

    def _next(self, timeout_s: float | None) -> InboundMessage | Wake | None:
        return self._inbox.arrived.get(timeout=timeout_s) if timeout_s != 0 else self._inbox.arrived.get_nowait()

    def _peer(self, name: str) -> Peer:
        if name not in self._peers:
            raise Refused(f"endpoint {self.name}: {name!r} is not connected; call connect first")
        return self._peers[name]


class EndpointFactory(Protocol):
    """Makes a process's end of the links: `Endpoint`, or what takes its place."""

    def __call__(
        self,
        name: str,
        keys: KeyPair,
        allowed: Mapping[str, bytes],
        *,
        run: str,
        listen: Listen | None = None,
        note: Callable[[str], None],
    ) -> Endpoint:
        """See `Endpoint`."""


def _received(arrived: InboundMessage) -> Received:
    envelope = arrived.envelope
    message = Message(envelope.kind, envelope.header, join_parts(envelope, arrived.frames))
    return Received(sender=arrived.sender, message=message, at_s=arrived.at_s)
