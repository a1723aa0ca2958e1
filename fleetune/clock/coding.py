"""Bytes and processor seconds of the messages across a cut, in the codecs of their links.

The sender's processor encodes after the task that made the values, and the receiver's decodes before the task that
reads them, so that both lengthen these tasks. Seconds are those that the profile has of each device; a profile without
them makes codecs free.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from fleetune.contracts.link_codecs import DENSE, ELEMENT_BYTES, effective_codec, wire_bytes
from fleetune.contracts.plan import BACKWARD, FORWARD, LinkUse, Plan
from fleetune.contracts.profile import Profile, Unit


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
        """Return the seconds of encoding and decoding that message; with error feedback the sender decodes too."""
        codec = use.codec_of(letter)
        if codec == DENSE:
            return CodingSeconds(0.0, 0.0)
        sizes = [
            size
            for size in self._values(unit, letter)
            if effective_codec(codec, -(-size // self._element_bytes), use.ratio, self._element_bytes) != DENSE
        ]
        coded, tensors = samples * sum(sizes), len(sizes)
        here = self._times[use.source].codec_time(codec, use.ratio)
        there = self._times[use.target].codec_time(codec, use.ratio)
        sender_s = coded * (here.encode_s_per_byte + (here.decode_s_per_byte if use.feedback else 0.0))
        sender_s += tensors * (here.encode_s + (here.decode_s if use.feedback else 0.0))
        return CodingSeconds(sender_s, coded * there.decode_s_per_byte + tensors * there.decode_s)

    def coded_bytes(self, unit: Unit, letter: str) -> int:
        """Return the dense bytes per sample of what a codec may change at the cut after `unit`."""
        return sum(self._values(unit, letter))

    def _values(self, unit: Unit, letter: str) -> Iterator[int]:
        """Yield the bytes per sample of each value that a codec may change."""
        if unit.coded_elements is None:
            yield _dense_bytes(unit, letter)
        else:
            yield from (elements * self._element_bytes for elements in unit.coded_elements)


def _dense_bytes(unit: Unit, letter: str) -> int:
    return unit.output_bytes if letter == FORWARD else unit.gradient_bytes


def feedback_bytes(plan: Plan, device: str, profile: Profile) -> int:
    """Return the bytes of residuals, in float32 at least, that a device keeps for its links with error feedback."""
    fed = {use.target for use in plan.links if use.source == device and use.feedback}
    coding, found = Coding(profile), 0
    for lane in plan.lanes if fed else ():
        for before, after in pairwise(lane.segments):
            unit = profile.unit(before.units[-1])
            for own, other, letter in ((before, after, FORWARD), (after, before, BACKWARD)):
                if device not in own.devices:
                    continue
                first, end = own.span(device)
                for peer in fed.intersection(other.devices):
                    low, high = other.span(peer)
                    samples = max(0, min(end, high) - max(first, low))
                    whole = coding.coded_bytes(unit, letter) * (lane.micro_batches or plan.micro_batches)
                    found += samples * max(whole, whole * ELEMENT_BYTES // profile.element_bytes)
    return found
