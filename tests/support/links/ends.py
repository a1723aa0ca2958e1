"""Two connected endpoints of one run for the tests, and raw sockets that violate the protocol."""

import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import zmq

from fleetune.links.authentication import KeyPair, new_key_pair
from fleetune.links.endpoint import Endpoint, Listen

PATIENCE_S = 20.0
KEYS = {name: new_key_pair() for name in ("ann", "bob", "eve")}
LISTED = {name: KEYS[name].public for name in ("ann", "bob")}


def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds; fail after PATIENCE_S."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s


@dataclass(frozen=True)
class Ends:
    """Two connected endpoints; `bob_notes` receives the notes of bob's refusals."""

    ann: Endpoint
    bob: Endpoint
    bob_notes: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)


@contextmanager
def two_ends(max_message_bytes: int = 1 << 24) -> Iterator[Ends]:
    """Connect ann and bob, and close both at the end."""
    notes: queue.SimpleQueue[str] = queue.SimpleQueue()
    listen = Listen(max_message_bytes=max_message_bytes)
    ann = Endpoint("ann", KEYS["ann"], LISTED, run="run-1", listen=listen, note=lambda _: None)
    bob = Endpoint("bob", KEYS["bob"], LISTED, run="run-1", listen=listen, note=notes.put)
    with ann, bob:
        ann.connect("bob", bob.address, KEYS["bob"].public)
        bob.connect("ann", ann.address, KEYS["ann"].public)
        ann.wait_connected("bob", PATIENCE_S)
        bob.wait_connected("ann", PATIENCE_S)
        yield Ends(ann, bob, notes)


@contextmanager
def raw_client(address: str, keys: KeyPair | None, server_public: bytes) -> Iterator[zmq.Socket[bytes]]:
    """A bare socket that sends arbitrary frames; without keys it does not use CURVE."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    if keys is not None:
        socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = server_public, keys.public, keys.secret
    socket.connect(address)
    try:
        yield socket
    finally:
        socket.close()
        context.term()
