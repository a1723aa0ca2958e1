"""Listed peers with invalid frames and unlisted clients disturb nobody else."""

import json
from typing import Any

import pytest
import zmq

from fleetune.links.authentication import KeyPair, new_key_pair
from fleetune.links.message import MAX_HEADER_BYTES, Message, header_frame
from tests.links.ends import KEYS, PATIENCE_S, Ends, raw_client, two_ends

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


def test_a_frame_beyond_all_limits_is_cut_off() -> None:
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
def test_a_stranger_gets_nothing_and_disturbs_nothing(keys: KeyPair | None, server_public: bytes) -> None:
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
