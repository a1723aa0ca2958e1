"""Bytes and processor seconds of the messages across a cut, in the codecs of their links.

The sender's processor encodes after the task that made the values, and the receiver's decodes before the task that
reads them, so that both lengthen these tasks. Seconds are those that the profile has of each device; a profile without
them makes codecs free.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from fleetune.contracts.link_codecs import (
    DENSE,
    ELEMENT_BYTES,
    FORWARD_MASK,
    effective_codec,
    kept_elements,
    wire_bytes,
)
from fleetune.contracts.plan import BACKWARD, FORWARD, Lane, LinkUse, Plan
from fleetune.contracts.profile import Profile, Unit

INDEX_BYTES = 8
"""Of a kept element's place, an int64, as codecs work with it."""


class CodingSeconds(NamedTuple):
    """Processor seconds that a message costs at its two ends."""

    sender_s: float
    receiver_s: float


class Coding:
    """The messages of one profile's cuts."""

    def __init__(self, profile: Profile) -> None:
        self._times = {times.device: times for times in profile.times}
        self._element_bytes = profile.element_bytes

    def message_bytes(self, unit: Unit, letter: str, samples: int, use: LinkUse) -> int:
        """Return the bytes that cross the cut after `unit` for so many samples, forward (F) or backward (B)."""
        dense = _dense_bytes(unit, letter)
        codec = use.codec_of(letter)
        if codec == DENSE:
            return dense * samples
        values = list(self._values(unit, letter))
        coded = sum(wire_bytes(size, samples, codec, use.ratio, self._element_bytes) for size in values)
        return coded + max(0, dense - sum(values)) * samples

    def seconds(self, unit: Unit, letter: str, samples: int, use: LinkUse) -> CodingSeconds:
        """Return the seconds of encoding and decoding that message, at the pace of devices that compute without a
        pause; with error feedback the sender decodes too, and adds and subtracts what is lost."""
        codec = use.codec_of(letter)
        if codec == DENSE:
            return CodingSeconds(0.0, 0.0)
        sizes = [
            size
            for size in self._values(unit, letter)
            if effective_codec(codec, -(-size // self._element_bytes), use.ratio, self._element_bytes) != DENSE
        ]
        coded, tensors = samples * sum(sizes), len(sizes)
        source, target = self._times[use.source], self._times[use.target]
        here, there = source.codec_time(codec, use.ratio), target.codec_time(codec, use.ratio)
        sender_s = coded * here.encode_s_per_byte + tensors * here.encode_s
        if use.feedback:
            sender_s += coded * (here.decode_s_per_byte + source.feedback_s_per_byte) + tensors * here.decode_s
        receiver_s = coded * there.decode_s_per_byte + tensors * there.decode_s
        return CodingSeconds(sender_s * source.stretch, receiver_s * target.stretch)

    def coded_bytes(self, unit: Unit, letter: str) -> int:
        """Return the dense bytes per sample of what a codec may change at the cut after `unit`."""
        return sum(self._values(unit, letter))

    def index_bytes(self, unit: Unit, ratio: float) -> int:
        """Return the bytes per sample of the indices that top-k keeps of a forward across the cut after `unit`."""
        sizes = (size // self._element_bytes for size in self._values(unit, FORWARD))
        return INDEX_BYTES * sum(kept_elements(elements, ratio) for elements in sizes)

    def _values(self, unit: Unit, letter: str) -> Iterator[int]:
        """Yield the bytes per sample of each value that a codec may change."""
        if unit.coded_elements is None:
            yield _dense_bytes(unit, letter)
        else:
            yield from (elements * self._element_bytes for elements in unit.coded_elements)


def dense(use: LinkUse) -> LinkUse:
    """Return the link without a codec."""
    return replace(use, codec=DENSE, ratio=1.0, feedback=False)


def _dense_bytes(unit: Unit, letter: str) -> int:
    return unit.output_bytes if letter == FORWARD else unit.gradient_bytes


def feedback_bytes(plan: Plan, device: str, profile: Profile) -> int:
    """Return the bytes of residuals, in float32 at least, that a device keeps for its links with error feedback."""
    fed = {use.target for use in plan.links if use.source == device and use.feedback}
    coding, found = Coding(profile), 0
    for lane in plan.lanes if fed else ():
        many = lane.micro_batches or plan.micro_batches
        for each in (each for index in range(len(lane.segments)) for each in _crossings(lane, index, device)):
            if each.peer in fed:
                whole = many * coding.coded_bytes(profile.unit(each.unit), FORWARD if each.is_below else BACKWARD)
                found += each.samples * max(whole, whole * ELEMENT_BYTES // profile.element_bytes)
    return found


def mask_bytes(plan: Plan, device: str, lane: Lane, index: int, profile: Profile) -> int:
    """Return the bytes of indices that a device keeps of a micro-batch, from the forwards across both cuts of its
    segment to their gradients, which come back at these elements; 0 but for links with forward-mask."""
    ratios = {(use.target, use.source): use.ratio for use in plan.links if use.codec == FORWARD_MASK}
    coding, found = Coding(profile), 0
    for each in _crossings(lane, index, device) if ratios else ():
        ratio = ratios.get((device, each.peer) if each.is_below else (each.peer, device))
        if ratio:
            found += each.samples * coding.index_bytes(profile.unit(each.unit), ratio)
    return found


class _Crossing(NamedTuple):
    """What crosses a cut of a device's segment to or from one device of the other one."""

    unit: str
    """The last one before the cut."""
    is_below: bool
    """True if the device's segment lies before the cut, so that it sends forwards and the peer gradients."""
    peer: str
    samples: int
    """Of a micro-batch."""


def _crossings(lane: Lane, index: int, device: str) -> Iterator[_Crossing]:
    """Yield what crosses both cuts of a segment from and to one of its devices; nothing for other devices."""
    own = lane.segments[index]
    for low in (index - 1, index) if device in own.devices else ():
        if not 0 <= low < len(lane.segments) - 1:
            continue
        other = lane.segments[index + 1 if low == index else low]
        first, end = own.span(device)
        for peer in other.devices:
            low_sample, high_sample = other.span(peer)
            if (samples := min(end, high_sample) - max(first, low_sample)) > 0:
                yield _Crossing(lane.segments[low].units[-1], low == index, peer, samples)
