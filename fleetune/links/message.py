"""Messages and their frames on the wire.

A message is one zmq multipart message: a JSON header frame, then the bytes of the parts. A part longer than FRAME_BYTES
is sent as several frames, so that encryption, transport and decryption overlap, heartbeats get through in between, and
the frame size can be limited for unauthenticated clients. A part of one frame is never copied; the receiving thread
joins the frames of longer parts with one copy.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from typing_extensions import Buffer

from fleetune.contracts import json_io
from fleetune.contracts.link_frames import FRAME_BYTES
from fleetune.errors import Refused

ALIGNMENT_BYTES = 64
"""What torch aligns the memory of tensors to that it makes itself (c10/core/alignment.h, gAlignment)."""


def empty_buffer(size_bytes: int) -> memoryview:
    """Return uninitialised memory, aligned so that a tensor may lie in it; numpy's own is aligned to 16 bytes."""
    room = np.empty(size_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
    start = -room.ctypes.data % ALIGNMENT_BYTES
    return room[start : start + size_bytes].data.cast("B")


MAX_HEADER_BYTES = 1 << 20
MAX_PARTS = 16384
MAX_KIND_CHARACTERS = 64
MAX_SEQUENCE = 1 << 62
SEQUENCE = "links.sequence"
"""Kind of the empty message that a sender adds after a reconnect: its sequence number reveals lost messages. The inbox
does not deliver it."""


@dataclass(frozen=True, slots=True)
class Message:
    """Kind (such as "activation"), JSON header and raw buffers; received parts are memoryviews that stay valid."""

    kind: str
    header: dict[str, Any]
    parts: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True)
class Received:
    """Message with its authenticated sender and arrival time."""

    sender: str
    message: Message
    at_s: float
    """Complete arrival, in seconds of this machine's monotonic clock."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Parsed and validated header frame: the message's own header, its origin and the sizes of its parts in bytes."""

    run: str
    session: str
    sequence: int
    kind: str
    header: dict[str, Any]
    sizes: tuple[int, ...]

    @property
    def frame_sizes(self) -> list[int]:
        """Bytes of each frame that follows the header frame."""
        return [min(FRAME_BYTES, size - start) for size in self.sizes for start in range(0, max(size, 1), FRAME_BYTES)]


def as_bytes(part: Buffer) -> memoryview:
    """View a contiguous buffer as flat bytes without copying."""
    view = memoryview(part)
    if view.nbytes == 0:
        return memoryview(b"")
    return view.cast("B")


def header_frame(message: Message, sizes: Sequence[int], *, run: str, session: str, sequence: int) -> bytes:
    """Encode the first frame of a message; Refused if a receiver would refuse it."""
    plain = {
        "run": run,
        "session": session,
        "sequence": sequence,
        "kind": message.kind,
        "header": message.header,
        "sizes": list(sizes),
    }
    try:
        frame = json.dumps(plain, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, TypeError) as error:
        raise Refused(f"message {message.kind!r}: its header is not JSON with finite numbers ({error})") from None
    if len(frame) > MAX_HEADER_BYTES:
        raise Refused(
            f"message {message.kind!r}: its header takes {len(frame)} bytes, allowed are {MAX_HEADER_BYTES}; "
            "move bulk into parts"
        )
    if not 0 < len(message.kind) <= MAX_KIND_CHARACTERS or len(sizes) > MAX_PARTS:
        raise Refused(
            f"message {message.kind!r}: a kind has 1 to {MAX_KIND_CHARACTERS} characters, a message at most "
            f"{MAX_PARTS} parts (got {len(sizes)})"
        )
    return frame


def part_frames(view: memoryview) -> list[memoryview]:
    """Split a part into frames of at most FRAME_BYTES; an empty part is one empty frame."""
    return [view[start : start + FRAME_BYTES] for start in range(0, max(view.nbytes, 1), FRAME_BYTES)]


def parse_header(frame: Buffer) -> Envelope:
    """Parse and validate a header frame; Refused names the first error."""
    raw = memoryview(frame)
    if raw.nbytes > MAX_HEADER_BYTES:
        raise Refused(f"header of {raw.nbytes} bytes, allowed are {MAX_HEADER_BYTES}")
    try:
        plain = json.loads(raw.tobytes(), parse_constant=_reject_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        raise Refused("header is not JSON") from None
    json_io.check_depth(plain, "header")
    fields = {"run": str, "session": str, "sequence": int, "kind": str, "header": dict, "sizes": list}
    if not isinstance(plain, dict) or plain.keys() != fields.keys():
        raise Refused(f"header must be an object with the keys {', '.join(fields)}")
    for key, kind in fields.items():
        if type(plain[key]) is not kind:
            raise Refused(f"header: {key} must be of type {kind.__name__}")
    if not 0 <= plain["sequence"] < MAX_SEQUENCE:
        raise Refused("header: sequence is out of range")
    if not 0 < len(plain["kind"]) <= MAX_KIND_CHARACTERS or len(plain["session"]) > MAX_KIND_CHARACTERS:
        raise Refused(f"header: kind and session take at most {MAX_KIND_CHARACTERS} characters")
    sizes = plain["sizes"]
    if len(sizes) > MAX_PARTS:
        raise Refused(f"header: {len(sizes)} parts, allowed are {MAX_PARTS}")
    if any(type(size) is not int or not 0 <= size < MAX_SEQUENCE for size in sizes):
        raise Refused("header: sizes must be whole numbers of bytes")
    return Envelope(**{**plain, "sizes": tuple(sizes)})


def check_frames(envelope: Envelope, frames: Sequence[memoryview], limit_bytes: int) -> None:
    """Raise Refused if the frames differ from the announced sizes, or exceed `limit_bytes` in all."""
    if sum(envelope.sizes) > limit_bytes:
        raise Refused(f"{sum(envelope.sizes)} bytes announced, allowed are {limit_bytes}")
    if [frame.nbytes for frame in frames] != envelope.frame_sizes:
        raise Refused("number or size of frames differs from what the header announced")


def join_parts(envelope: Envelope, frames: Sequence[memoryview]) -> tuple[memoryview, ...]:
    """Join frames into the parts of a validated message; only parts of several frames are copied, once."""
    parts, place = [], 0
    for size in envelope.sizes:
        count = max(1, -(-size // FRAME_BYTES))
        those = frames[place : place + count]
        parts.append(those[0] if count == 1 else _join_frames(those, size))
        place += count
    return tuple(parts)


def _join_frames(frames: Sequence[memoryview], size: int) -> memoryview:
    """Copy frames into one uninitialised buffer."""
    whole = empty_buffer(size)
    place = 0
    for frame in frames:
        whole[place : place + frame.nbytes] = frame
        place += frame.nbytes
    return whole


def _finite(text: str) -> float:
    """Parse a JSON float; rejects 1e999 and the like, which overflow to infinity."""
    value = float(text)
    return value if math.isfinite(value) else _reject_constant(text)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a finite number")
