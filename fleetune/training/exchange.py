"""Exchange of tensors between workers, addressed by content and not by order of arrival.

A message that is larger than a link takes at once, or than pacing lets pass at once, travels in pieces. What has come
is compared with what was to come, so that an error names its sender: devices of a run are admitted by their keys, and
may still have other versions or a broken memory, and PyTorch would add a tensor of one element to a whole weight. Times
are by the coordinator's clock, whose offset is measured with every beat.
"""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from fleetune.errors import Refused
from fleetune.links.endpoint import Endpoint
from fleetune.links.message import ALIGNMENT_BYTES, Message, Received, empty_buffer
from fleetune.links.peer import PacedSender, piece_bytes
from fleetune.models.device_memory import DEVICE_ERRORS, DeviceCopies
from fleetune.program import Step
from fleetune.recovery.holdings import Attempt

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Partial:
    """The pieces of one message that have come, from the first one on."""

    header: Mapping[str, Any]
    """Of the first piece."""
    count: int
    left_bytes: int
    """Of the tensors that the header describes; pieces beyond them are not kept."""
    came: int = 0
    parts: list[memoryview] = field(default_factory=list)


class PartialMessages(Generic[Key]):
    """Messages that have come in part.

    A piece that was lost with its connection takes the whole message with it: what comes of it later is ignored. The
    loss itself is found by the numbers of the link's messages, and has its consequences there.
    """

    def __init__(self, size_bytes: Callable[[Mapping[str, Any]], int]) -> None:
        """size_bytes: how many bytes the tensors have that a header describes."""
        self._size_bytes = size_bytes
        self._partial: dict[Key, _Partial] = {}

    def __len__(self) -> int:
        return len(self._partial)

    def add(
        self, key: Key, header: Mapping[str, Any], parts: list[memoryview]
    ) -> tuple[Mapping[str, Any], list[memoryview]] | None:
        """Add a piece; once the message is whole, return the header of its first piece and the parts of all.

        ValueError, KeyError or TypeError if the header says nothing sensible of a piece, ValueError if more comes than
        the first one described.
        """
        number, count = header.get("piece", (0, 1))
        if not 0 <= number < count:
            raise ValueError(f"piece {number} of {count}")
        if count == 1:
            return header, parts
        if number == 0:
            self._partial[key] = _Partial(header, count, self._size_bytes(header))
        partial = self._partial.get(key)
        if partial is None:
            return None
        if (number, count) != (partial.came, partial.count):
            del self._partial[key]
            return None
        partial.left_bytes -= sum(part.nbytes for part in parts)
        if partial.left_bytes < 0:
            del self._partial[key]
            raise ValueError(f"more bytes came than the {self._size_bytes(partial.header)} announced")
        partial.parts += parts
        partial.came += 1
        if partial.came < count:
            return None
        del self._partial[key]
        return partial.header, partial.parts

    def drop(self, is_old: Callable[[Key], bool]) -> None:
        """Drop the messages that nobody will ask for any more."""
        self._partial = {key: partial for key, partial in self._partial.items() if not is_old(key)}


def split_into_pieces(parts: Sequence[memoryview], limit_bytes: int) -> Iterator[tuple[memoryview, ...]]:
    """Yield the parts of each message: the bytes of `parts` in order, at most `limit_bytes` a message, at least one."""
    piece: list[memoryview] = []
    room = limit_bytes
    for part in parts:
        start = 0
        while part.nbytes - start > room:
            piece.append(part[start : start + room])
            start += room
            yield tuple(piece)
            piece, room = [], limit_bytes
        piece.append(part[start:])
        room -= part.nbytes - start
    yield tuple(piece)


def join_pieces(pieces: Sequence[memoryview], sizes: Sequence[int]) -> list[memoryview]:
    """Return parts of these sizes, joined from those of all pieces; ValueError if the totals differ."""
    total = sum(part.nbytes for part in pieces)
    if min(sizes, default=0) < 0 or sum(sizes) != total:
        raise ValueError(f"{total} bytes came, {sum(sizes)} were announced")
    parts = [empty_buffer(size) for size in sizes]
    rest = iter(pieces)
    source = memoryview(b"")
    for part in parts:
        filled = 0
        while filled < part.nbytes:
            source = source or next(rest)
            size = min(source.nbytes, part.nbytes - filled)
            part[filled : filled + size] = source[:size]
            filled, source = filled + size, source[size:]
    return parts


DRIFT = 1e-4
"""Seconds per second that two machines' clocks may drift apart: twice the tolerance of a quartz clock."""
MAX_SAMPLES = 64
DTYPES = {str(d).removeprefix("torch."): d for d in (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64,
)}  # fmt: skip
POLL_S = 0.5
BACKUP_ITEMS = "backup"
"""Kind of the messages that carry backups; they may arrive while later rounds run."""
ABORT = "abort"
"""Kind of the message that begins a later attempt."""
BEAT_ACK, COORDINATOR_ALIVE = "heard", "here"
"""Kinds of the coordinator's messages about itself: the answer to a beat, and a sign of life."""


FIRST_ATTEMPT = Attempt(0, 0)
"""In which workers begin."""


class Stopped(Exception):
    """Raised when the coordinator says stop; not an error."""


class Aborted(Exception):
    """Raised when the coordinator begins a later attempt, whatever the compute thread waits for; not an error."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__(str(attempt))
        self.attempt = attempt


class BrokenOff(Exception):
    """Raised where a state was asked for whose move was broken off; what broke it off is told where it happened."""


Tensors = Mapping[Any, torch.Tensor]
"""Tensors of a message: by the number of a value that crosses a cut, else by name."""


@dataclass(frozen=True, slots=True)
class TransferKey:
    """Identity of a tensor message; `lane` and `segment` are the sender's.

    `step` is the micro-batch of kind `values-F` (of a forward, across a cut) and `values-B` (gradients, back across
    it), counts the steps of a `ring`, and is the receiver's segment of `tied` (gradients of shared weights).
    """

    kind: str
    round: int
    lane: str
    segment: int
    step: int
    sender: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """Received tensors by value number or name; times are in seconds of the coordinator's clock."""

    tensors: dict[Any, torch.Tensor]
    sent_s: float
    arrived_s: float
    size_bytes: int
    described: Mapping[str, Any] = field(default_factory=dict)
    """Descriptions of values in a codec, by value number (`link_coding`)."""


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    offset_s: float
    error_s: float
    """Bound of the offset's error when it was measured: half of the round trip."""

    def error_bound_s(self, at_s: float) -> float:
        """Return the bound of the offset's error at another time."""
        return self.error_s + DRIFT * abs(at_s - self.at_s)


class ClockOffset:
    """The offset from the local monotonic clock to the coordinator's, measured again with every beat.

    Keeps the round trips with the smallest error bound: as in NTP, half of the round trip plus the drift since then.
    """

    def __init__(self) -> None:
        self._samples: list[_Sample] = []

    def __len__(self) -> int:
        """Return how many round trips are kept."""
        return len(self._samples)

    def add(self, sent_s: float, remote_received_s: float, remote_sent_s: float, received_s: float) -> None:
        """Add one round trip: `sent_s` and `received_s` by the local clock, the others by the remote one."""
        offset_s = ((remote_received_s - sent_s) + (remote_sent_s - received_s)) / 2
        error_s = ((received_s - sent_s) - (remote_sent_s - remote_received_s)) / 2
        if not (math.isfinite(offset_s) and error_s >= 0):
            return  # a round trip cannot take negative time
        new = _Sample((sent_s + received_s) / 2, offset_s, error_s)
        if any(old.error_bound_s(new.at_s) <= new.error_s for old in self._samples):
            return  # an older sample is more accurate
        kept = [old for old in self._samples if new.error_bound_s(old.at_s) > old.error_s]
        self._samples = [*kept, new][-MAX_SAMPLES:]

    def offset_at_s(self, at_s: float) -> float:
        """Return the offset at a time of the local clock; 0 before anything was measured."""
        best = min(self._samples, key=lambda sample: sample.error_bound_s(at_s), default=None)
        return best.offset_s if best else 0.0


class Exchange:
    """One worker's end of all its links.

    `offset_s` is the offset from the local monotonic clock to the coordinator's. It is measured continuously and
    changes only between rounds, so that rows keep their order and length within a round.
    """

    def __init__(self, endpoint: Endpoint, coordinator: str, device: torch.device) -> None:
        self._endpoint = endpoint
        self._coordinator = coordinator
        self._copies = DeviceCopies(device)
        self._paced: dict[str, PacedSender] = {}
        self._limits: dict[str, int] = {}
        """Peer -> most bytes of a message to it, where that is less than the endpoint's."""
        self._beside: dict[str, tuple[PacedSender, int]] = {}
        """Peer -> what sends beside the round's messages, and most bytes of one of its own."""
        self._arrived: dict[tuple[Attempt, TransferKey], Arrival] = {}
        self._partial = PartialMessages[tuple[Attempt, TransferKey]](
            lambda header: sum(_sizes_bytes(header["tensors"]))
        )
        self._clock_offset = ClockOffset()
        self._control: list[Message] = []
        self.attempt = FIRST_ATTEMPT
        self.round = 0
        self.offset_s = 0.0
        self.on_progress: Callable[[], None] = lambda: None
        self.waits_for = ""
        """Name of the peer that the compute thread waits for; no progress is expected meanwhile."""

    @property
    def name(self) -> str:
        """Name of this worker's device."""
        return self._endpoint.name

    def now_s(self) -> float:
        """Return the time in seconds of the coordinator's clock."""
        return time.monotonic() + self.offset_s

    def pace(self, peer: str, bytes_per_s: float) -> None:
        """Send to a peer no faster than this, from now on."""
        self._limits[peer] = piece_bytes(bytes_per_s, self._endpoint.limit_bytes)
        self._paced[peer] = PacedSender(lambda message: self._transmit(peer, message), bytes_per_s)

    def queued_bytes(self) -> dict[str, int]:
        """Return the bytes of this round's messages that wait for their turn at a rate, by peer."""
        return {peer: waiting for peer, sender in self._paced.items() if (waiting := sender.queued_bytes)}

    def split(self, peer: str, limit_bytes: int) -> None:
        """Send to a peer in messages of at most this size, from now on."""
        self._limits[peer] = limit_bytes

    def unpace(self) -> None:
        """Send to all peers as fast as their links allow, from now on; what is still queued is not sent."""
        self.close()
        self._paced, self._limits, self._beside = {}, {}, {}

    def close(self) -> None:
        """End the threads that pace."""
        for sender in self._senders:
            sender.close()

    @property
    def _senders(self) -> tuple[PacedSender, ...]:
        return (*self._paced.values(), *(sender for sender, _ in self._beside.values()))

    def send_beside(self, peer: str, key: TransferKey, tensors: Tensors, bytes_per_s: float) -> None:
        """Send tensors no faster than this and in small pieces, so that other messages pass between them."""
        if peer not in self._beside:
            pieces = PacedSender(lambda message: self._transmit(peer, message), bytes_per_s)
            self._beside[peer] = (pieces, piece_bytes(bytes_per_s, self._endpoint.limit_bytes))
        sender, limit_bytes = self._beside[peer]
        for message in self._messages(key, tensors, {}, limit_bytes):
            sender.send(message)

    def send(self, peer: str, key: TransferKey, tensors: Tensors, described: Mapping[str, Any] | None = None) -> None:
        """Send tensors to a peer, or to this worker itself; their memory must not change until they have arrived.

        described: descriptions of values in a codec.
        """
        if peer == self._endpoint.name:
            now_s = self.now_s()
            own = {k: tensor.detach() for k, tensor in tensors.items()}
            self._arrived[self.attempt, key] = Arrival(own, now_s, now_s, 0, dict(described or {}))
            return
        for message in self._messages(
            key, tensors, described or {}, self._limits.get(peer, self._endpoint.limit_bytes)
        ):
            if peer in self._paced:
                self._paced[peer].send(message)
            else:
                self._transmit(peer, message)

    def _transmit(self, peer: str, message: Message) -> int:
        """Send a message, or a piece of one, over a link, and return its bytes; threads that pace do so, too."""
        return self._endpoint.send(peer, message)

    def _messages(
        self, key: TransferKey, tensors: Tensors, described: Mapping[str, Any], limit_bytes: int
    ) -> Iterator[Message]:
        """Yield the messages that carry tensors, each of at most `limit_bytes`; only the first one describes them."""
        listed, parts = [], []
        for number, flat in zip(tensors, self._copies.to_host(tensors.values()), strict=True):
            dtype = str(flat.dtype).removeprefix("torch.")
            listed.append([number, dtype, list(flat.shape)])
            parts.append(flat.view(-1).view(torch.uint8).numpy().data if flat.numel() else memoryview(b""))
        each_says = {
            "attempt": self.attempt,
            "round": key.round,
            "lane": key.lane,
            "segment": key.segment,
            "step": key.step,
        }
        first_says = {
            "tensors": listed,
            "sent_s": self.now_s(),
            **({"described": dict(described)} if described else {}),
        }
        cut = list(split_into_pieces(parts, limit_bytes))
        for number, piece in enumerate(cut):
            where = {"piece": [number, len(cut)]} if len(cut) > 1 else {}
            yield Message(key.kind, {**each_says, **where, **(first_says if number == 0 else {})}, piece)

    def receive(self, key: TransferKey) -> Arrival:
        """Wait for a tensor message and return it."""
        with self._waits_for(key.sender):
            while (self.attempt, key) not in self._arrived:
                self.receive_next()
        return self._arrived.pop((self.attempt, key))

    def take(self, kind: str) -> list[tuple[TransferKey, Arrival]]:
        """Return the tensor messages of a kind that have arrived, without waiting."""
        keys = [at for at in self._arrived if at[0] == self.attempt and at[1].kind == kind]
        return [(at[1], self._arrived.pop(at)) for at in keys]

    @property
    def unclaimed(self) -> tuple[tuple[Attempt, TransferKey], ...]:
        """Tensor messages that are here as a whole, and that nothing has asked for yet."""
        return tuple(self._arrived)

    @property
    def unfinished(self) -> int:
        """Number of tensor messages of which only pieces are here."""
        return len(self._partial)

    def send_control(self, kind: str, header: dict[str, Any], *parts: bytes) -> None:
        """Send a control message to the coordinator."""
        self._endpoint.send(self._coordinator, Message(kind, header, parts))

    def recv_control(self, *kinds: str) -> Message:
        """Wait for a control message of one of these kinds and return it; messages of other kinds stay queued."""
        with self._waits_for(self._coordinator):
            while True:
                for index, message in enumerate(self._control):
                    if message.kind in kinds:
                        return self._control.pop(index)
                self.receive_next()

    def start_round(self, round: int) -> None:
        """Drop messages of older rounds and use the newest measurement of the coordinator's clock."""
        self.round = round
        self.offset_s = self._clock_offset.offset_at_s(time.monotonic())
        self._drop_old()

    def at_step(self, step: Step) -> None:
        """Do nothing before a step of the round; `faulty_worker` lets faults happen there."""

    def start_attempt(self, attempt: Attempt) -> None:
        """Drop messages of older attempts, from now on; those of this one that came early are kept, of any round.

        What still waits for its share of a link goes too, backups included: other devices would ignore it, and this
        attempt's messages would wait behind it.
        """
        self.attempt, self.round = attempt, 0
        for sender in self._senders:
            sender.drop_queued()
        self._control = [m for m in self._control if "attempt" not in m.header or attempt_of(m.header) >= attempt]
        self._drop_old()

    def _drop_old(self) -> None:
        self._arrived = {at: arrival for at, arrival in self._arrived.items() if not self._is_old(*at)}
        self._partial.drop(lambda at: self._is_old(*at))

    def _is_old(self, attempt: Attempt, key: TransferKey) -> bool:
        """Tell whether a message is of an older attempt, or of an older round of this one."""
        old_round = key.round < self.round and key.kind != BACKUP_ITEMS
        return attempt < self.attempt or (attempt == self.attempt and old_round)

    @contextmanager
    def _waits_for(self, peer: str) -> Iterator[None]:
        self.waits_for = peer
        try:
            yield
        finally:
            self.waits_for = ""

    def receive_next(self) -> None:
        """Wait up to POLL_S for one message, and keep it or obey it: Stopped or Aborted if the coordinator says so.

        Refused if it is malformed.
        """
        received = self._endpoint.receive(POLL_S)
        if received is None:
            return
        message = received.message
        if received.sender != self._coordinator or "tensors" in message.header or "piece" in message.header:
            self._store_tensors(received)
        elif message.kind == "stop":
            raise Stopped
        elif message.kind == ABORT:
            attempt = attempt_of(message.header)
            if attempt > self.attempt:
                raise Aborted(attempt)
        elif message.kind == BEAT_ACK:
            sent_s, there_s, answered_s = (float(message.header[n]) for n in ("sent_s", "came_s", "answered_s"))
            self._clock_offset.add(sent_s, there_s, answered_s, received.at_s)
        elif message.kind != COORDINATOR_ALIVE:
            self._control.append(message)

    def _store_tensors(self, received: Received) -> None:
        """Store a tensor message until `receive` asks for it; Refused if it is malformed."""
        message, header = received.message, received.message.header
        try:
            round, segment, step = (int(header[name]) for name in ("round", "segment", "step"))
            key = TransferKey(message.kind, round, str(header["lane"]), segment, step, received.sender)
            attempt = attempt_of(header)
            if self._is_old(attempt, key):
                return
            whole = self._partial.add((attempt, key), header, [memoryview(part) for part in message.parts])
            if whole is None:
                return
            first, parts = whole
            if first is not header:  # it came in pieces
                parts = join_pieces(parts, _sizes_bytes(first["tensors"]))
            tensors = _tensors(first["tensors"], parts, self._copies)
            sent_s, described = float(first["sent_s"]), first.get("described", {})
            if not (math.isfinite(sent_s) and isinstance(described, dict)):
                raise ValueError("its time is not finite, or it describes its values in no table")
        except DEVICE_ERRORS:
            raise
        except (KeyError, OverflowError, TypeError, ValueError, RuntimeError) as error:
            raise Refused(
                f"{received.sender} sent a {message.kind!r} that does not describe its tensors ({error})"
            ) from None
        size_bytes = sum(part.nbytes for part in parts)
        arrival = Arrival(tensors, sent_s, received.at_s + self.offset_s, size_bytes, described)
        self._arrived[attempt, key] = arrival


def attempt_of(header: Mapping[str, Any]) -> Attempt:
    """Return the attempt of a message; ValueError or TypeError if it is malformed."""
    coordinator, number = header["attempt"]
    return Attempt(int(coordinator), int(number))


def _sizes_bytes(described: list[Any]) -> list[int]:
    """Return the bytes of each tensor."""
    return [math.prod(shape) * DTYPES[dtype].itemsize for _, dtype, shape in described]


def _tensors(described: list[Any], parts: Sequence[Any], copies: DeviceCopies) -> dict[int, torch.Tensor]:
    """Return tensors over the received memory, copied only where it is not aligned: ZeroMQ packs small parts."""
    made: dict[Any, torch.Tensor] = {}
    for (number, dtype, shape), part in zip(described, parts, strict=True):
        kind = DTYPES[dtype]
        if memoryview(part).nbytes == 0:
            made[_key(number)] = copies.to_device(torch.empty(0, dtype=kind).view(shape))
            continue
        view = np.frombuffer(part, dtype=np.uint8)
        if not view.flags.writeable:
            view = _writable(view)
        made[_key(number)] = _aligned(copies.to_device(torch.from_numpy(view).view(kind).view(shape)))
    return made


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a copy of it if it lies where torch would not have put it.

    A matrix product may add in another order, and so round otherwise, where an operand is not aligned: MKL 2024.2's
    does on AMD's Zen 5. What a device computes must not depend on how its inputs came.
    """
    return tensor if tensor.data_ptr() % ALIGNMENT_BYTES == 0 else tensor.clone()


def _key(described: Any) -> Any:
    """Return the number or name of a received tensor; ValueError for anything else."""
    if not isinstance(described, int | str):
        raise ValueError(f"{described!r:.40} is neither the number nor the name of a tensor")
    return described


def _writable(view: np.ndarray) -> np.ndarray:
    """Return the same memory without the read-only flag, which torch warns about; received values are never written."""
    interface = dict(view.__array_interface__)
    interface["data"] = (interface["data"][0], False)
    holder = type("Received", (), {"__array_interface__": interface, "keeps": view})()
    return np.asarray(holder)


Shape = tuple[int, ...]


def check_tensor(sender: str, what: str, tensor: torch.Tensor, dtype: torch.dtype, shape: Shape | None) -> None:
    """Refuse a tensor of another type or shape. shape: None if it is not known."""
    if tensor.dtype != dtype or (shape is not None and tuple(tensor.shape) != shape):
        expected = f"{_spelled(dtype)} {list(shape)}" if shape is not None else _spelled(dtype)
        raise Refused(
            f"{sender} sent {what} as {_spelled(tensor.dtype)} {list(tensor.shape)}, and not as {expected}; see that "
            "all devices run the same version, and test that device's memory"
        )


def check_alike(sender: str, what: str, found: Mapping[Any, torch.Tensor], wanted: Mapping[Any, torch.Tensor]) -> None:
    """Refuse tensors that are not all among those of these names, types and shapes."""
    for key, tensor in found.items():
        if key not in wanted:
            raise Refused(f"{sender} sent {what} with {str(key)[:80]!r}, which is no part of it")
        like = wanted[key]
        check_tensor(sender, f"{what} {key}", tensor, like.dtype, tuple(like.shape))


def _spelled(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
