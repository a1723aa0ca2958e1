"""What travels on a link, and its frames on the wire.

A message is one zmq multipart message: a JSON header frame, then the bytes of the parts. A part longer than CHUNK_BYTES
goes as several frames: encryption, transport and decryption of one part overlap, heartbeats get through in between, and
no frame a stranger may announce is large. Parts of a single frame are never copied; longer ones are joined once, by the
thread that receives them.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from typing_extensions import Buffer

from fleetune.contracts import wire
from fleetune.errors import Refused

CHUNK_BYTES = 1 << 18
MAX_HEADER_BYTES = 1 << 20
MAX_PARTS = 16384
MAX_KIND_CHARACTERS = 64
MAX_SEQUENCE = 1 << 62
SEQUENCE = "links.sequence"
"""An empty message after a break, so that its number shows what was lost; who receives never sees it."""


@dataclass(frozen=True, slots=True)
class Message:
    """A kind ("activation"), a JSON header, and raw buffers; received parts are memoryviews and stay valid."""

    kind: str
    header: dict[str, Any]
    parts: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True)
class Received:
    """A message, the proven name of who sent it, and when it was wholly here."""

    sender: str
    message: Message
    at_s: float
    """Of this machine's monotonic clock."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """The header frame, parsed and checked: the message's own header and what the link needs to trust it."""

    run: str
    session: str
    sequence: int
    kind: str
    header: dict[str, Any]
    sizes: tuple[int, ...]

    @property
    def frame_sizes(self) -> list[int]:
        """Bytes of every frame that must follow the header frame."""
        return [min(CHUNK_BYTES, size - start) for size in self.sizes for start in range(0, max(size, 1), CHUNK_BYTES)]


def as_bytes(part: Buffer) -> memoryview:
    """Any contiguous buffer as a flat view of bytes, without a copy."""
    view = memoryview(part)
    if view.nbytes == 0:
        return memoryview(b"")
    return view.cast("B")


def header_frame(message: Message, sizes: Sequence[int], *, run: str, session: str, sequence: int) -> bytes:
    """The first frame of a message; refused where a receiver would refuse it."""
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
    """A part cut into the frames it travels in; an empty part is one empty frame."""
    return [view[start : start + CHUNK_BYTES] for start in range(0, max(view.nbytes, 1), CHUNK_BYTES)]


def parse_header(frame: Buffer) -> Envelope:
    """The header frame as an Envelope; Refused says what is wrong with it."""
    raw = memoryview(frame)
    if raw.nbytes > MAX_HEADER_BYTES:
        raise Refused(f"header of {raw.nbytes} bytes, allowed are {MAX_HEADER_BYTES}")
    try:
        plain = json.loads(raw.tobytes(), parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        raise Refused("header is not JSON") from None
    wire.check_depth(plain, "header")
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
    """Refuse frames that are not what the header announced, or more bytes than `limit_bytes`."""
    if sum(envelope.sizes) > limit_bytes:
        raise Refused(f"{sum(envelope.sizes)} bytes announced, allowed are {limit_bytes}")
    if [frame.nbytes for frame in frames] != envelope.frame_sizes:
        raise Refused("number or size of frames differs from what the header announced")


def join_parts(envelope: Envelope, frames: Sequence[memoryview]) -> tuple[memoryview, ...]:
    """The parts of a checked message; only those of several frames are copied (once)."""
    parts, place = [], 0
    for size in envelope.sizes:
        count = max(1, -(-size // CHUNK_BYTES))
        chunks = frames[place : place + count]
        parts.append(chunks[0] if count == 1 else _joined(chunks, size))
        place += count
    return tuple(parts)


def _joined(chunks: Sequence[memoryview], size: int) -> memoryview:
    """Chunks in one piece of memory that nobody has zeroed first."""
    whole = np.empty(size, dtype=np.uint8).data.cast("B")
    place = 0
    for chunk in chunks:
        whole[place : place + chunk.nbytes] = chunk
        place += chunk.nbytes
    return whole


def _finite(text: str) -> float:
    """1e999 is valid JSON, and no number."""
    value = float(text)
    return value if math.isfinite(value) else _refuse_constant(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a finite number")
