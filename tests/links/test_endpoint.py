"""Two endpoints that admit each other."""

import threading

import numpy as np
import pytest

from fleetune.contracts.link_frames import FRAME_BYTES
from fleetune.errors import Refused, TryAgain
from fleetune.links.endpoint import Endpoint, Listen
from fleetune.links.message import Message
from tests.support.links.ends import KEYS, LISTED, PATIENCE_S, two_ends, until


def test_a_message_arrives_whole_with_its_senders_name() -> None:
    """Header and parts of every size arrive unchanged and stay valid after both ends close."""
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 255, shape, np.uint8) for shape in ((3, 5), (0, 4), (FRAME_BYTES,), (FRAME_BYTES * 2 + 3,))
    ]
    with two_ends() as ends:
        ends.ann.send("bob", Message("activation", {"round": 1, "name": "ü"}, tuple(arrays)))
        received = ends.bob.receive(PATIENCE_S)
        sent_bytes = ends.ann.sent_bytes["bob"]
    assert received is not None and received.sender == "ann"
    assert (received.message.kind, received.message.header) == ("activation", {"round": 1, "name": "ü"})
    assert [bytes(part) for part in received.message.parts] == [array.tobytes() for array in arrays]
    payload_bytes = sum(array.nbytes for array in arrays)
    assert payload_bytes < sent_bytes < payload_bytes + 1000


def test_received_parts_can_be_written_to() -> None:
    """Received memory is writable, so that tensors can use it without a copy."""
    with two_ends() as ends:
        ends.ann.send("bob", Message("k", {}, (b"small", bytes(FRAME_BYTES + 1))))
        received = ends.bob.receive(PATIENCE_S)
    assert received is not None
    assert [memoryview(part).readonly for part in received.message.parts] == [False, False]


def test_messages_of_a_sender_keep_their_order() -> None:
    """Messages of one sender keep their order while the other direction is busy."""
    with two_ends() as ends:

        def talk(endpoint: Endpoint, peer: str) -> None:
            for index in range(50):
                endpoint.send(peer, Message("n", {"index": index}, (bytes(index * 1000),)))

        threads = [threading.Thread(target=talk, args=each) for each in ((ends.ann, "bob"), (ends.bob, "ann"))]
        for thread in threads:
            thread.start()
        for endpoint in (ends.ann, ends.bob):
            got = [endpoint.receive(PATIENCE_S) for _ in range(50)]
            assert [each.message.header["index"] for each in got if each] == list(range(50))
        for thread in threads:
            thread.join()
        assert (ends.ann.refused, ends.bob.refused) == (0, 0)


def test_a_receive_without_a_message_returns_none() -> None:
    """A receive that times out returns None."""
    with two_ends() as ends:
        assert ends.bob.receive(0) is None
        assert ends.bob.receive(0.01) is None


def test_close_wakes_receivers_and_ends_threads() -> None:
    """Close wakes waiting receivers, ends all threads of the endpoint, and can be repeated."""
    with two_ends() as ends:
        got: list[object] = []
        waiter = threading.Thread(target=lambda: got.append(ends.bob.receive(None)))
        waiter.start()
        ends.bob.close()
        waiter.join(PATIENCE_S)
        assert got == [None] and ends.bob.receive(None) is None
        ends.bob.close()
        with pytest.raises(TryAgain, match="the endpoint is closed"):
            ends.bob.send("ann", Message("k", {}))
    assert not [thread for thread in threading.enumerate() if thread.name == "fleetune-links"]


def test_a_message_sent_just_before_close_arrives() -> None:
    """Close sends queued messages first."""
    with two_ends() as ends:
        ends.ann.send("bob", Message("last", {}, (bytes(1 << 20),)))
        ends.ann.close()
        received = ends.bob.receive(PATIENCE_S)
        assert received is not None and received.message.kind == "last"


def test_a_restarted_peer_is_received_again() -> None:
    """A peer restarted on the same address receives later messages, and its new session counts from zero."""
    with two_ends() as ends:
        ends.bob.send("ann", Message("before", {}))
        assert ends.ann.receive(PATIENCE_S)
        address = ends.bob.address
        ends.bob.close()
        with Endpoint(
            "bob", KEYS["bob"], LISTED, run="run-1", listen=Listen(bind=address), note=lambda _: None
        ) as again:
            again.connect("ann", ends.ann.address, KEYS["ann"].public)
            again.send("ann", Message("after", {}))
            received = ends.ann.receive(PATIENCE_S)
            assert received is not None and (received.sender, received.message.kind) == ("bob", "after")


def test_misuse_is_refused_by_name() -> None:
    """Unknown peers, second connections, invalid keys and unusable addresses are refused by name."""
    with two_ends(max_message_bytes=100) as ends:
        with pytest.raises(Refused, match="'cat' is not connected"):
            ends.ann.send("cat", Message("k", {}))
        with pytest.raises(Refused, match="'bob' is connected already"):
            ends.ann.connect("bob", ends.bob.address, KEYS["bob"].public)
        with pytest.raises(Refused, match="public key of cat"):
            ends.ann.connect("cat", ends.bob.address, b"no key")
        with pytest.raises(Refused, match="101 bytes, allowed are 100"):
            ends.ann.send("bob", Message("k", {}, (bytes(101),)))
        with pytest.raises(Refused, match="cannot be listened on"):
            Endpoint("bob", KEYS["bob"], LISTED, run="r", listen=Listen(bind=ends.bob.address), note=lambda _: None)
    with pytest.raises(Refused, match="public key of ann"):
        Endpoint("bob", KEYS["bob"], {"ann": b"no key"}, run="r", note=lambda _: None)


def test_waiting_for_a_missing_peer_times_out() -> None:
    """Waiting for a peer that does not exist raises TryAgain."""
    with Endpoint("ann", KEYS["ann"], LISTED, run="r", note=lambda _: None) as ann:
        ann.connect("bob", "tcp://127.0.0.1:9", KEYS["bob"].public)
        with pytest.raises(TryAgain, match="bob did not admit us within 0.05 s"):
            ann.wait_connected("bob", 0.05)
        assert not ann.connected("bob")
        ann.send("bob", Message("k", {}))
        ann.close(linger_s=0)


def test_an_error_in_the_note_callback_is_ignored() -> None:
    """Messages arrive even if the note callback raises."""
    noted: list[str] = []

    def note(sentence: str) -> None:
        noted.append(sentence)
        raise RuntimeError(sentence)

    with (
        Endpoint("bob", KEYS["bob"], LISTED, run="run-1", note=note) as bob,
        Endpoint("ann", KEYS["ann"], LISTED, run="run-0", note=lambda _: None) as old,
        Endpoint("ann", KEYS["ann"], LISTED, run="run-1", note=lambda _: None) as new,
    ):
        for ann in (old, new):
            ann.connect("bob", bob.address, KEYS["bob"].public)
            ann.wait_connected("bob", PATIENCE_S)
        old.send("bob", Message("k", {}))
        until(lambda: noted)
        new.send("bob", Message("k", {}))
        received = bob.receive(PATIENCE_S)
        assert received is not None and received.sender == "ann"
    assert noted == ["message from ann dropped: it belongs to another run"]


def test_both_ends_may_close_at_once() -> None:
    """Regression: an endpoint closed its monitors first, and zmq blocked forever on their events."""
    for _ in range(10):
        with two_ends() as ends:
            closers = [threading.Thread(target=end.close, daemon=True) for end in (ends.ann, ends.bob)]
            for closer in closers:
                closer.start()
            for closer in closers:
                closer.join(PATIENCE_S)
            assert not any(closer.is_alive() for closer in closers)


def test_an_urgent_message_waits_for_no_receiver_and_for_no_delay() -> None:
    """An urgent message arrives beside a thread that does not receive, and overtakes those that a link delays."""
    listen = Listen(delays_s={"ann": 3600.0}, urgent="now")
    with (
        Endpoint("bob", KEYS["bob"], LISTED, run="run-1", listen=listen, note=lambda _: None) as bob,
        Endpoint("ann", KEYS["ann"], LISTED, run="run-1", note=lambda _: None) as ann,
    ):
        ann.connect("bob", bob.address, KEYS["bob"].public)
        ann.send("bob", Message("later", {}, ()))
        ann.send("bob", Message("now", {"round": 3}, (b"part",)))
        received = bob.receive_urgent()
        assert received is not None and received.sender == "ann"
        assert (received.message.kind, received.message.header) == ("now", {"round": 3})
        assert bob.receive(0) is None
    assert bob.receive_urgent() is None, "a closed endpoint wakes its receiver"
