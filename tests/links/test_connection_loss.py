"""Connections that break while messages are in transit."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fleetune.errors import Refused, TryAgain
from fleetune.links.endpoint import Endpoint
from fleetune.links.message import Message
from fleetune.links.relay import Relay
from tests.support.links.ends import KEYS, LISTED, PATIENCE_S, two_ends, until


@contextmanager
def cabled() -> Iterator[tuple[Endpoint, Endpoint, Relay]]:
    """Ann, connected to bob through a cable."""
    with (
        Endpoint("bob", KEYS["bob"], LISTED, run="r", note=lambda _: None) as bob,
        Endpoint("ann", KEYS["ann"], LISTED, run="r", note=lambda _: None) as ann,
    ):
        cable = Relay(bob.address)
        ann.connect("bob", cable.address, KEYS["bob"].public)
        ann.wait_connected("bob", PATIENCE_S)
        try:
            yield ann, bob, cable
        finally:
            cable.close()


def test_a_lost_message_is_detected_after_the_reconnect() -> None:
    """Regression: the loss of the last message before a silence stayed unnoticed, and its receiver waited forever.

    Now the sender's first message after a reconnect reveals the loss; the receiver gets no message for it.
    """
    with cabled() as (ann, bob, cable):
        ann.send("bob", Message("first", {}))
        first = bob.receive(PATIENCE_S)
        assert first is not None and not bob.lost_from
        cable.swallow()
        ann.send("bob", Message("second", {}, (bytes(5000),)))
        swallowed = 0
        while swallowed < 5000:  # heartbeats are among it
            swallowed += cable.swallowed.get(timeout=PATIENCE_S)
        cable.cut()
        until(lambda: bob.receive(0.01) or bob.lost_from)
        assert (bob.lost_from, bob.lost) == ({"ann": 1}, 1)
        ann.send("bob", Message("third", {}))
        third = bob.receive(PATIENCE_S)
        assert third is not None and third.message.kind == "third" and bob.lost == 1


def test_a_break_between_messages_loses_none() -> None:
    """A connection that breaks between two messages reconnects, and messages queued meanwhile arrive."""
    with cabled() as (ann, bob, cable):
        ann.send("bob", Message("first", {}))
        assert bob.receive(PATIENCE_S)
        cable.cut(swallow=True)  # no handshake comes to its end, until ann has noticed the break
        until(lambda: "bob" in ann.down_s)
        ann.send("bob", Message("second", {}))
        cable.cut()
        second = bob.receive(PATIENCE_S)
        assert second is not None and second.message.kind == "second"
        assert bob.lost == 0
        until(lambda: ann.down_s == {})  # bob may receive before ann is told that she is connected


def test_peers_that_come_and_go_leave_nothing_behind() -> None:
    """Bug: each peer that was dropped left a socket and a descriptor, so that a run in which devices come back again
    and again came to the end of its descriptors.
    """

    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    with Endpoint("ann", KEYS["ann"], LISTED, run="r", note=lambda _: None) as ann:

        def meet() -> None:
            with Endpoint("bob", KEYS["bob"], LISTED, run="r", note=lambda _: None) as bob:
                ann.connect("bob", bob.address, KEYS["bob"].public)
                ann.wait_connected("bob", PATIENCE_S)
                ann.disconnect("bob")

        meet()
        before = open_files()
        for _ in range(10):
            meet()
        until(lambda: open_files() <= before)  # zmq closes sockets in a thread of its own


def test_a_lasting_disconnection_is_reported() -> None:
    """down_s counts from the break, or from the first connection attempt."""
    with cabled() as (ann, bob, cable):
        assert ann.down_s == {}
        cable.close()
        until(lambda: ann.down_s.get("bob", 0) > 0.05)
        bob.connect("ann", "tcp://127.0.0.1:9", KEYS["ann"].public)
        until(lambda: bob.down_s.get("ann", 0) > 0.05)


def test_a_failed_handshake_does_not_count_as_a_connection() -> None:
    """A stranger at a peer's address that hangs up on every attempt does not reset down_s."""
    with (
        socket.create_server(("127.0.0.1", 0)) as door,
        Endpoint("ann", KEYS["ann"], LISTED, run="r", note=lambda _: None) as ann,
    ):
        door.settimeout(PATIENCE_S)
        ann.connect("bob", f"tcp://127.0.0.1:{door.getsockname()[1]}", KEYS["bob"].public)
        connected_s = time.monotonic()
        for _ in range(4):
            door.accept()[0].close()
            asked_s = time.monotonic()
        down_s = ann.down_s["bob"]
        assert down_s >= asked_s - connected_s


def test_the_last_arrival_of_a_sender_is_known_before_any_thread_receives() -> None:
    """last_arrival_s is updated on arrival, before any thread receives the message."""
    with two_ends() as ends:
        assert ends.bob.last_arrival_s("ann") is None
        ends.ann.send("bob", Message("first", {}))
        until(lambda: ends.bob.last_arrival_s("ann"))
        received = ends.bob.receive(PATIENCE_S)
        assert received is not None and received.at_s == ends.bob.last_arrival_s("ann")


def test_an_error_of_the_io_thread_is_raised_to_receivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: an error in the IO thread made all peers look silent; receivers now get TryAgain."""
    with two_ends() as ends:
        inbox = ends.bob._inbox  # private: a bug in the IO thread, which nothing that a peer sends should cause
        monkeypatch.setitem(inbox._handlers, inbox._router, lambda: 1 / 0)  # private: as above
        ends.ann.send("bob", Message("first", {}))
        with pytest.raises(TryAgain, match="endpoint bob: links: the IO thread ended .ZeroDivisionError"):
            ends.bob.receive(PATIENCE_S)


def test_a_malformed_address_is_refused() -> None:
    """Regression: a bad address raised zmq's own error; it is Refused with the peer's name."""
    with Endpoint("ann", KEYS["ann"], LISTED, run="r", note=lambda _: None) as ann:
        for address in ("nonsense", "tcp://127.0.0.1:port", "", "inproc://bell", "ipc://x"):
            with pytest.raises(Refused, match=r"bob: .* cannot be connected to .*give tcp://ADDRESS:PORT"):
                ann.connect("bob", address, KEYS["bob"].public)
