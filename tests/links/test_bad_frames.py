"""A listed peer that breaks the rules of framing harms only itself."""

import json
from typing import Any

import pytest

from fleetune.links.message import MAX_HEADER_BYTES, Message, header_frame
from tests.links.ends import KEYS, PATIENCE_S, raw_client, two_ends

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
    """Each is noted with its sender and reason; the same client's next good message and other peers get through."""
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
    """The same frames twice, or an earlier number after a later one, arrive once."""
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
    """A single enormous frame costs its sender the connection, and others nothing."""
    with two_ends() as ends, raw_client(ends.bob.address, KEYS["ann"], KEYS["bob"].public) as raw:
        raw.send_multipart([header([1 << 23]), bytes(1 << 23)])
        raw.send_multipart([header([], 1, header={"n": 1})])
        received = ends.bob.receive(PATIENCE_S)
        assert received is not None and received.message.header == {"n": 1}
        ends.ann.send("bob", Message("k", {"n": 2}))
        received = ends.bob.receive(PATIENCE_S)
        assert received is not None and received.message.header == {"n": 2}
        assert ends.bob.receive(0) is None
