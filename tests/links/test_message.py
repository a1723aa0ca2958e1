"""Encoding and validation of message frames."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.contracts.link_frames import FRAME_BYTES
from fleetune.errors import Refused
from fleetune.links.message import (
    MAX_HEADER_BYTES,
    Message,
    as_bytes,
    check_frames,
    header_frame,
    join_parts,
    parse_header,
    part_frames,
)

GOOD: dict[str, Any] = {"run": "r", "session": "s", "sequence": 0, "kind": "k", "header": {}, "sizes": [1]}
SIZES = st.sampled_from([0, 1, 7, FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES + 1, 3 * FRAME_BYTES])
SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(SIZES, max_size=4), header=st.dictionaries(st.text(max_size=5), SCALARS | st.text(max_size=5)))
def test_frames_round_trip(sizes: list[int], header: dict[str, Any]) -> None:
    """Any JSON header and parts survive splitting into frames and joining."""
    parts = tuple(bytes([index + 1]) * size for index, size in enumerate(sizes))
    envelope = parse_header(header_frame(Message("k", header, parts), sizes, run="r", session="s", sequence=3))
    frames = [chunk for part in parts for chunk in part_frames(as_bytes(part))]
    check_frames(envelope, frames, limit_bytes=sum(sizes))
    assert [bytes(part) for part in join_parts(envelope, frames)] == list(parts)
    assert (envelope.header, envelope.sequence) == (header, 3)


def test_a_part_of_one_frame_is_not_copied() -> None:
    """A part of at most FRAME_BYTES is the received memory itself."""
    memory = bytearray(FRAME_BYTES)
    envelope = parse_header(json.dumps({**GOOD, "sizes": [FRAME_BYTES]}).encode())
    (part,) = join_parts(envelope, [memoryview(memory)])
    memory[5] = 9
    assert part[5] == 9


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"\x00\xff\x17", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "object with the keys"),
        (b" " * (MAX_HEADER_BYTES + 1), "allowed are"),
        (json.dumps({**GOOD, "more": 1}).encode(), "object with the keys"),
        (json.dumps({k: v for k, v in GOOD.items() if k != "run"}).encode(), "object with the keys"),
        (json.dumps({**GOOD, "sequence": True}).encode(), "sequence must be of type int"),
        (json.dumps({**GOOD, "sequence": -1}).encode(), "out of range"),
        (json.dumps({**GOOD, "sequence": 1 << 70}).encode(), "out of range"),
        (json.dumps({**GOOD, "kind": ""}).encode(), "characters"),
        (json.dumps({**GOOD, "session": "s" * 65}).encode(), "characters"),
        (json.dumps({**GOOD, "header": []}).encode(), "header must be of type dict"),
        (json.dumps({**GOOD, "header": {"loss": float("nan")}}).encode(), "not JSON"),
        (json.dumps({**GOOD, "sizes": [1.5]}).encode(), "whole numbers"),
        (json.dumps({**GOOD, "sizes": [-1]}).encode(), "whole numbers"),
        (json.dumps({**GOOD, "sizes": [0] * 20_000}).encode(), "20000 parts"),
    ],
)
def test_a_malformed_header_is_refused_with_its_reason(frame: bytes, reason: str) -> None:
    """Every malformed header is refused with its reason."""
    with pytest.raises(Refused, match=reason):
        parse_header(frame)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(noise: bytes) -> None:
    """Random bytes raise nothing but Refused."""
    with pytest.raises(Refused):
        parse_header(noise)


@pytest.mark.parametrize("lengths", [[], [1], [1, 2, 3], [2, 1], [1, 3]])
def test_frames_must_match_the_header(lengths: list[int]) -> None:
    """Missing, extra, swapped or longer frames are refused."""
    envelope = parse_header(json.dumps({**GOOD, "sizes": [1, 2]}).encode())
    with pytest.raises(Refused, match="differs from what the header announced"):
        check_frames(envelope, [memoryview(bytes(length)) for length in lengths], limit_bytes=100)


@pytest.mark.parametrize(
    "message",
    [
        Message("k", {"loss": float("nan")}),
        Message("k", {"bulk": "x" * MAX_HEADER_BYTES}),
        Message("k", {"odd": object()}),
        Message("", {}),
    ],
)
def test_a_sender_refuses_headers_that_a_receiver_would_refuse(message: Message) -> None:
    """A sender refuses headers that are not finite JSON of bounded length."""
    with pytest.raises(Refused):
        header_frame(message, [], run="r", session="s", sequence=0)
