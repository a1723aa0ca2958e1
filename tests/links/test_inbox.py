"""The inbox: invalid frames and unlisted clients disturb nobody else, and the delay queue emulates latency."""

import json
import queue
import threading
import time
from typing import Any

import pytest
import zmq

from fleetune.errors import Refused
from fleetune.links.authentication import KeyPair, new_key_pair
from fleetune.links.endpoint import Endpoint, Listen
from fleetune.links.inbox import DelayQueue, InboundMessage
from fleetune.links.message import MAX_HEADER_BYTES, Envelope, Message, header_frame
from tests.support.links.ends import KEYS, LISTED, PATIENCE_S, Ends, raw_client, two_ends

LIMIT_BYTES = 1000


def header(sizes: list[int], sequence: int = 0, **changes: Any) -> bytes:
    """A header frame of ann's raw socket, with changes."""
    frame = header_frame(Message("k", {}), sizes, run="run-1", session="raw", sequence=sequence)
    return json.dumps({**json.loads(frame), **changes}).encode()


BAD: dict[str, tuple[list[bytes], str]] = {
    "random bytes": ([b"\x93\x00\xfe", b"\x01"], "not JSON"),
    "empty": ([b""], "not JSON"),
    "wrong JSON": ([b'{"run": "run-1"}'], "object with the keys"),
    "huge header": ([b" " * (MAX_HEADER_BYTES + 1)], "allowed are"),
    "too few parts": ([header([1, 1]), b"x"], "differs from what the header announced"),
    "too many parts": ([header([1]), b"x", b"x"], "differs from what the header announced"),
    "wrong size": ([header([2]), b"x"], "differs from what the header announced"),
    "oversized": ([header([LIMIT_BYTES + 1]), bytes(LIMIT_BYTES + 1)], "1001 bytes announced, allowed are 1000"),
    "oversized in pieces": ([header([1] * 1001), *[b"x"] * 1001], "1001 bytes announced, allowed are 1000"),
    "another run": ([header([], run="run-0")], "another run"),
}


@pytest.mark.parametrize(("frames", "reason"), BAD.values(), ids=BAD.keys())
def test_bad_frames_are_dropped_counted_and_named(frames: list[bytes], reason: str) -> None:
    """Invalid frames are dropped and noted with sender and reason; later messages get through."""
    with two_ends(LIMIT_BYTES) as ends, raw_client(ends.bob.address, KEYS["ann"], KEYS["bob"].public) as raw:
        raw.send_multipart(frames)
        note = ends.bob_notes.get(timeout=PATIENCE_S)
        assert "message from ann dropped" in note and reason in note
        assert ends.bob.refused == 1
        raw.send_multipart([header([1]), b"x"])
        received = ends.bob.receive(PATIENCE_S)
        assert received is not None and bytes(received.message.parts[0]) == b"x"
        ends.ann.send("bob", Message("k", {}))
        assert ends.bob.receive(PATIENCE_S) is not None


def test_replayed_frames_are_dropped() -> None:
    """Repeated and reordered frames are dropped."""
    with two_ends() as ends, raw_client(ends.bob.address, KEYS["ann"], KEYS["bob"].public) as raw:
        for sequence in (0, 0, 2, 1, 2, 3):
            raw.send_multipart([header([1], sequence, header={"n": sequence}), b"x"])
        got = [ends.bob.receive(PATIENCE_S) for _ in range(3)]
        assert [each.message.header["n"] for each in got if each] == [0, 2, 3]
        assert (ends.bob.refused, ends.bob.lost) == (3, 1)
        notes = [ends.bob_notes.get(timeout=PATIENCE_S) for _ in range(4)]
        assert ["replayed or out of order" in note for note in notes] == [True, False, True, True]
        assert notes[1] == "1 earlier messages from ann were lost or refused"


def test_an_oversized_frame_ends_its_senders_connection() -> None:
    """An oversized frame ends its sender's connection only."""
    with two_ends() as ends, raw_client(ends.bob.address, KEYS["ann"], KEYS["bob"].public) as raw:
        raw.send_multipart([header([1 << 23]), bytes(1 << 23)])
        raw.send_multipart([header([], 1, header={"n": 1})])
        received = ends.bob.receive(PATIENCE_S)
        assert received is not None and received.message.header == {"n": 1}
        ends.ann.send("bob", Message("k", {"n": 2}))
        received = ends.bob.receive(PATIENCE_S)
        assert received is not None and received.message.header == {"n": 2}
        assert ends.bob.receive(0) is None


STRANGERS = {
    "without keys": (None, KEYS["bob"].public),
    "with a wrong server key": (KEYS["ann"], new_key_pair().public),
    "with a good pair that is not on the list": (KEYS["eve"], KEYS["bob"].public),
}


@pytest.mark.parametrize(("keys", "server_public"), STRANGERS.values(), ids=STRANGERS.keys())
def test_an_unlisted_client_gets_no_answer_and_disturbs_no_peer(keys: KeyPair | None, server_public: bytes) -> None:
    """An unlisted client is counted and gets no answer, while listed peers continue."""
    with two_ends() as ends, raw_client(ends.bob.address, keys, server_public) as stranger:
        frame = header_frame(Message("evil", {}), [], run="run-1", session="x", sequence=0)
        for _ in range(5):
            stranger.send_multipart([frame])
        for index in range(20):
            exchange(ends, index)
        assert "client turned away" in ends.bob_notes.get(timeout=PATIENCE_S)
        assert ends.bob.refused >= 1
        exchange(ends, 20)
        assert ends.bob.receive(0) is None
        with pytest.raises(zmq.Again):
            stranger.recv(zmq.NOBLOCK)


def exchange(ends: Ends, index: int) -> None:
    """Exchange one message each way between the listed peers, without any other message in between."""
    ends.ann.send("bob", Message("question", {"index": index}))
    question = ends.bob.receive(PATIENCE_S)
    assert question is not None and (question.sender, question.message.header) == ("ann", {"index": index})
    ends.bob.send("ann", Message("answer", {"index": index}))
    answer = ends.ann.receive(PATIENCE_S)
    assert answer is not None and (answer.sender, answer.message.header) == ("bob", {"index": index})


DELAYS_S = {"far": 10.0, "near": 1.0}


def at(sender: str, at_s: float, kind: str = "k") -> InboundMessage:
    """A message that arrived at `at_s`."""
    return InboundMessage(sender, Envelope("run", "session", 0, kind, {}, ()), [], at_s)


class Day:
    """Fake queue and clock: arrivals at known times; the clock moves only while the queue is read."""

    def __init__(self, *arrivals: InboundMessage) -> None:
        self.now_s = 0.0
        self.waits: list[float | None] = []
        self._to_come = list(arrivals)

    def get(self, *, timeout: float | None) -> InboundMessage | None:
        """Return the next arrival within the timeout; None after the last one, if there is no timeout."""
        self.waits.append(timeout)
        until_s = None if timeout is None else self.now_s + timeout
        if self._to_come and (until_s is None or self._to_come[0].at_s <= until_s):
            self.now_s = max(self.now_s, self._to_come[0].at_s)
            return self._to_come.pop(0)
        if until_s is None:
            return None
        self.now_s = until_s
        raise queue.Empty

    def held(self) -> DelayQueue:
        """Delay queue over these arrivals."""
        return DelayQueue(self, DELAYS_S, lambda: self.now_s)  # type: ignore[arg-type]


def test_delayed_messages_keep_their_senders_order_and_others_overtake_them() -> None:
    """Messages arrive at their due times in the order of each sender; undelayed ones overtake delayed ones."""
    day = Day(at("far", 0, "f1"), at("near", 1, "n1"), at("far", 1, "f2"), at("here", 1.5, "h"), at("near", 2, "n2"))
    held = day.held()
    got = [held.get(None) for _ in range(5)]
    assert [(each.envelope.kind, each.at_s) for each in got if each] == [
        ("h", 1.5),
        ("n1", 2.0),
        ("n2", 3.0),
        ("f1", 10.0),
        ("f2", 11.0),
    ]
    assert day.now_s == 11.0, "nothing came before its time or after it"
    assert held.get(None) is None


def test_messages_due_together_keep_their_order_of_arrival() -> None:
    """Messages due at the same time keep their order of arrival."""
    held = Day(*(at("near", 3.0, kind) for kind in "zaza")).held()
    assert [got.envelope.kind for got in (held.get(None) for _ in range(4)) if got] == list("zaza")


def test_a_time_limit_counts_from_the_call() -> None:
    """A message due after the timeout is not returned, and a later call returns it."""
    day = Day(at("far", 1.0))
    held = day.held()
    for limit_s, ends_s in ((0, 0.0), (4.0, 4.0), (0, 4.0), (6.9, 10.9)):
        with pytest.raises(queue.Empty):
            held.get(limit_s)
        assert day.now_s == pytest.approx(ends_s)
    got = held.get(0.2)
    assert got is not None and got.at_s == day.now_s == pytest.approx(11.0)


def test_waiting_does_not_poll() -> None:
    """A wait reads the queue once per arrival and once per due message."""
    day = Day(at("near", 5.0))
    assert day.held().get(None)
    assert day.waits == [None, 1.0]


def test_due_messages_precede_new_arrivals() -> None:
    """Due messages are returned even while an undelayed sender floods the queue."""
    day = Day(at("near", 0.0, "n"), *(at("here", 1.0, "h") for _ in range(3)))
    held = day.held()
    got = [held.get(None) for _ in range(4)]
    assert [each.envelope.kind for each in got if each] == ["h", "n", "h", "h"]


def test_each_waiting_thread_gets_one_message() -> None:
    """Each of several receiving threads gets one message."""
    arrived: queue.SimpleQueue[InboundMessage | None] = queue.SimpleQueue()
    held = DelayQueue(arrived, {"near": 0.01})
    got: queue.SimpleQueue[InboundMessage | None] = queue.SimpleQueue()
    threads = [threading.Thread(target=lambda: got.put(held.get(PATIENCE_S))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in threads:
        arrived.put(at("near", time.monotonic()))
    for thread in threads:
        thread.join(PATIENCE_S)
    assert all(got.get(timeout=0) is not None for _ in threads)


def test_an_endpoint_delays_only_the_configured_senders() -> None:
    """Ann receives bob's messages 0.1 s late with their due time; bob receives ann's at once."""
    listen = Listen(delays_s={"bob": 0.1})
    with (
        Endpoint("ann", KEYS["ann"], LISTED, run="run-1", listen=listen, note=lambda _: None) as ann,
        Endpoint("bob", KEYS["bob"], LISTED, run="run-1", note=lambda _: None) as bob,
    ):
        ann.connect("bob", bob.address, KEYS["bob"].public)
        bob.connect("ann", ann.address, KEYS["ann"].public)
        sent_s = time.monotonic()
        bob.send("ann", Message("slow", {}, (b"parts",)))
        received = ann.receive(PATIENCE_S)
        assert received is not None and received.at_s >= sent_s + 0.1
        assert received.at_s <= time.monotonic() and bytes(received.message.parts[0]) == b"parts"
        assert ann.receive(0) is None
        ann.send("bob", Message("k", {}))
        assert bob.receive(PATIENCE_S)
        ann.close()
        assert ann.receive(None) is None


def test_the_published_address_can_be_configured() -> None:
    """An endpoint publishes the configured address instead of the bound one."""
    listen = Listen(address="tcp://192.0.2.1:7")
    with Endpoint("ann", KEYS["ann"], LISTED, run="r", listen=listen, note=lambda _: None) as ann:
        assert ann.address == "tcp://192.0.2.1:7"


@pytest.mark.parametrize("delay_s", [-1.0, float("nan"), float("inf")])
def test_a_delay_must_be_finite_and_not_negative(delay_s: float) -> None:
    """A negative or non-finite delay is refused with the sender's name."""
    with pytest.raises(Refused, match="link from bob: delay_s"):
        Listen(delays_s={"bob": delay_s})
