"""Links between endpoints of one process: no sockets, no encryption, and nothing is lost.

Headers are encoded and parsed as on the wire, so that what a peer gets is what it would get over a socket; parts are
copied when they are sent. A thread that computes holds the baton of its run; it lets go of it only while it waits for a
message. So one thread computes at a time: torch's generator of random numbers is the process's, and a device seeds it
before each unit.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping

from fleetune.errors import Refused
from fleetune.links.authentication import KeyPair
from fleetune.links.endpoint import Endpoint, Listen
from fleetune.links.message import Message, Received, as_bytes, header_frame, parse_header
from fleetune.links.peer import Tap


class Baton:
    """What the one thread holds that computes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None

    def take(self) -> None:
        """Wait until no other thread computes."""
        self._lock.acquire()
        self._holder = threading.get_ident()

    def give(self) -> None:
        """Let another thread compute."""
        self._holder = None
        self._lock.release()

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread holds it."""
        return self._holder == threading.get_ident()


class MemoryLinks:
    """The endpoints of this process that reach each other, and the baton of those that compute."""

    def __init__(self) -> None:
        self.baton = Baton()
        self._open: dict[str, MemoryEndpoint] = {}
        """Address -> endpoint."""

    def endpoint(
        self,
        name: str,
        keys: KeyPair,
        allowed: Mapping[str, bytes],
        *,
        run: str,
        listen: Listen | None = None,
        note: Callable[[str], None],
    ) -> "MemoryEndpoint":
        """Make an endpoint; for `EndpointFactory`."""
        made = MemoryEndpoint(self, name, run, listen or Listen())
        self._open[made.address] = made
        return made

    def at(self, address: str) -> "MemoryEndpoint | None":
        """The endpoint at an address, if it is not closed."""
        return self._open.get(address)

    def closed(self, address: str) -> None:
        """Forget an endpoint."""
        self._open.pop(address, None)


class MemoryEndpoint(Endpoint):
    """One device's end of links in memory."""

    def __init__(self, links: MemoryLinks, name: str, run: str, listen: Listen) -> None:
        self.name, self.address = name, f"memory://{name}/{id(self)}"
        self.limit_bytes = listen.max_message_bytes
        self.tap: Tap | None = None
        self.wakes_on_disconnect = False
        self._links, self._run, self._urgent_kind = links, run, listen.urgent
        self._to: dict[str, str] = {}
        """Peer -> its address."""
        self._sent: dict[str, int] = {}
        self._heard_s: dict[str, float] = {}
        self._arrived: queue.SimpleQueue[Received | None] = queue.SimpleQueue()
        self._urgent: queue.SimpleQueue[Received | None] = queue.SimpleQueue()
        self._over = False

    def connect(self, peer: str, address: str, server_public: bytes) -> None:
        """Send to an address from now on."""
        if peer in self._to:
            raise Refused(f"endpoint {self.name}: {peer!r} is connected already")
        self._to[peer], self._sent[peer] = address, 0

    def disconnect(self, peer: str) -> None:
        """Send there no more."""
        self._to.pop(peer, None)
        self._sent.pop(peer, None)

    def wait_connected(self, peer: str, timeout_s: float) -> None:
        """Return at once: whoever is there is connected."""

    def connected(self, peer: str) -> bool:
        """Return whether the peer is there."""
        return self._links.at(self._address(peer)) is not None

    def send(self, peer: str, message: Message) -> int:
        """Put a message into a peer's queue; what is sent to one that has ended is dropped."""
        address = self._address(peer)
        parts = tuple(memoryview(bytearray(as_bytes(part))) for part in message.parts)
        sizes = [part.nbytes for part in parts]
        frame = header_frame(message, sizes, run=self._run, session=self.name, sequence=0)
        if self.tap is not None:
            self.tap(peer, [frame, *parts])
        to = self._links.at(address)
        if to is not None:
            to.take_in(self.name, Message(message.kind, parse_header(frame).header, parts))
        self._sent[peer] += len(frame) + sum(sizes)
        return len(frame) + sum(sizes)

    def take_in(self, sender: str, message: Message) -> None:
        """Take a message that was sent here."""
        received = Received(sender, message, time.monotonic())
        self._heard_s[sender] = received.at_s
        (self._urgent if self._urgent_kind and message.kind == self._urgent_kind else self._arrived).put(received)

    def wake(self) -> None:
        """End the wait of the thread that receives."""
        self._arrived.put(None)

    def receive(self, timeout_s: float | None) -> Received | None:
        """Return the next message; a thread that computes lets others compute while it waits."""
        try:
            return self._arrived.get_nowait()
        except queue.Empty:
            if timeout_s == 0:
                return None
        baton = self._links.baton if self._links.baton.is_mine else None
        if baton is not None:
            baton.give()
        try:
            return self._arrived.get(timeout=timeout_s)
        except queue.Empty:
            return None
        finally:
            if baton is not None:
                baton.take()

    def receive_urgent(self) -> Received | None:
        """Wait for the next urgent message; None after `close`."""
        return self._urgent.get()

    @property
    def sent_bytes(self) -> dict[str, int]:
        """Bytes of headers and parts sent so far, per peer."""
        return dict(self._sent)

    @property
    def refused(self) -> int:
        """Return 0: only peers of this process are there."""
        return 0

    @property
    def lost(self) -> int:
        """Return 0: nothing is lost."""
        return 0

    @property
    def lost_from(self) -> Mapping[str, int]:
        """Return {}: nothing is lost."""
        return {}

    def last_arrival_s(self, sender: str) -> float | None:
        """Return the arrival of a sender's newest message."""
        return self._heard_s.get(sender)

    @property
    def down_s(self) -> dict[str, float]:
        """Return {}: that a peer has ended is known from its job."""
        return {}

    def close(self, linger_s: float = 1.0) -> None:
        """Be there no more."""
        if not self._over:
            self._over = True
            self._links.closed(self.address)
            self._arrived.put(None)
            self._urgent.put(None)

    def _address(self, peer: str) -> str:
        if peer not in self._to:
            raise Refused(f"endpoint {self.name}: {peer!r} is not connected; call connect first")
        return self._to[peer]
