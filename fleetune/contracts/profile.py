"""A profile: the model as an ordered list of units, and the time of each unit on each device."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import field
from typing import Annotated

from pydantic import Field

from fleetune.contracts.link_codecs import CODECS, ELEMENT_BYTES
from fleetune.contracts.record import distinct, finite, not_negative, one_of, positive, record
from fleetune.contracts.subnet import Subnet
from fleetune.errors import Refused


@record
class Unit:
    """A named piece of the model; units are listed in a topological order and cuts lie between neighbours.

    Sizes are bytes; `per sample` means for one sample of a micro-batch.
    """

    name: str
    param_bytes: int
    trainable_bytes: int
    buffer_bytes: int = 0
    """Buffers, and the copies of trained weights that mixed precision computes with."""
    activation_bytes: int
    """Kept between forward and backward, per sample; with what the allocator needs for it beyond the tensors."""
    workspace_bytes: Annotated[int, Field(exclude_if=lambda value: not value)] = 0
    """At most, while the unit runs forward or backward, beside weights, gradients and all activations: whatever the
    number of samples. A device needs it for one unit at a time."""
    workspace_sample_bytes: Annotated[int, Field(exclude_if=lambda value: not value)] = 0
    """The same, more for each sample."""
    output_bytes: int
    """All bytes that cross a cut after this unit, forward, per sample (values of earlier units included)."""
    gradient_bytes: int
    """All bytes that cross the same cut backward, per sample."""
    flops: int
    """Forward, per sample."""
    min_samples: Annotated[int, Field(exclude_if=lambda value: value == 1)] = 1
    """Fewest samples of a micro-batch that a device can train the unit on. A batch norm, whose statistics are those of
    the whole micro-batch, needs all of them: no group can share the unit."""
    cut_after: bool = True
    """False if the tensors after this unit cannot be split by samples: the next unit must stay with this one."""
    tied: tuple[str, ...] = ()
    """Names of trained parameters shared with other units; their holders sum the gradients every round."""
    frozen_tied: Annotated[tuple[str, ...], Field(exclude_if=lambda value: not value)] = ()
    """Names of frozen parameters shared with other units."""
    coded_elements: Annotated[tuple[int, ...] | None, Field(exclude_if=lambda value: value is None)] = None
    """[value] Elements per sample of what a codec may change at a cut after this unit; masks, positions and what all
    samples share are not among it. None: unknown, all that crosses counts as one value."""

    def __post_init__(self) -> None:
        not_negative(
            f"unit {self.name}",
            param_bytes=self.param_bytes,
            trainable_bytes=self.trainable_bytes,
            buffer_bytes=self.buffer_bytes,
            activation_bytes=self.activation_bytes,
            workspace_bytes=self.workspace_bytes,
            workspace_sample_bytes=self.workspace_sample_bytes,
            output_bytes=self.output_bytes,
            gradient_bytes=self.gradient_bytes,
            flops=self.flops,
        )
        positive(f"unit {self.name}", min_samples=self.min_samples)
        for elements in self.coded_elements or ():
            positive(f"unit {self.name}", coded_elements=elements)
        if self.trainable_bytes > self.param_bytes:
            raise Refused(
                f"unit {self.name}: trainable_bytes {self.trainable_bytes} exceed param_bytes {self.param_bytes}"
            )


def fewest_samples(units: Iterable[Unit]) -> int:
    """Return the fewest samples of a micro-batch that a device can train these units on; 1 for none."""
    return max((unit.min_samples for unit in units), default=1)


@record
class CodecTime:
    """Seconds that a device takes to encode and decode in one codec: some for each tensor, more for each byte of the
    dense tensor."""

    codec: str
    ratio: float = 1.0
    """Compression ratio of a codec that leaves elements out."""
    encode_s_per_byte: float
    decode_s_per_byte: float
    encode_s: Annotated[float, Field(exclude_if=lambda value: not value)] = 0.0
    """Of a tensor, whatever its size."""
    decode_s: Annotated[float, Field(exclude_if=lambda value: not value)] = 0.0

    def __post_init__(self) -> None:
        owner = f"codec {self.codec}"
        one_of(owner, "codec", self.codec, CODECS)
        positive(owner, ratio=self.ratio)
        not_negative(owner, encode_s_per_byte=self.encode_s_per_byte, decode_s_per_byte=self.decode_s_per_byte)
        not_negative(owner, encode_s=self.encode_s, decode_s=self.decode_s)


@record
class Spread:
    """The range of nine in ten measurements, relative to their median."""

    low: float
    """At most 1."""
    high: float
    """At least 1."""

    def __post_init__(self) -> None:
        positive("spread", low=self.low, high=self.high)
        if not self.low <= 1 <= self.high:
            raise Refused(f"spread: 1 must lie between low {self.low} and high {self.high}")


@record
class GateExtra:
    """Time of a gated block beyond the share of its work that is left, divided by the time of the whole block."""

    forward: float
    backward: float

    def __post_init__(self) -> None:
        finite("gate extra", forward=self.forward, backward=self.backward)


@record
class GateTimes:
    """What gates cost on one device: a block with half of its heads full, beside the whole block."""

    skipped: GateExtra
    """The other heads are skipped, so that one group of heads runs."""
    forward_only: GateExtra
    """The other heads run forward only, as a group of their own."""


@record
class PartialPasses:
    """Shares of passes that are left where only a part of them is needed, [unit]."""

    below: tuple[float, ...]
    """Of a forward: neither the unit nor anything below it is trained, and nothing is kept for a backward."""
    passed: tuple[float, ...]
    """Of a backward: something below the unit is trained, and nothing of the unit. It computes the gradient of its
    inputs."""
    lowest: tuple[float, ...]
    """Of a backward: the unit is trained, and nothing below it. It computes the gradients of its parameters."""

    def __post_init__(self) -> None:
        for value in (*self.below, *self.passed, *self.lowest):
            if not 0 <= value <= 1:
                raise Refused(f"partial passes: a share is {value}; it is at least 0 and at most 1")


@record
class DeviceTimes:
    """Seconds per unit and batch size on one device, at the device's own pace (emulated limits included)."""

    device: str
    runtime_bytes: int
    """Memory of an idle worker before it holds any unit."""
    forward_s: tuple[tuple[float, ...], ...]
    """[unit][batch size] minimum over the timed passes."""
    backward_s: tuple[tuple[float, ...], ...]
    """[unit][batch size]; 0 for units below the first trainable parameter."""
    forward_usual: Annotated[tuple[float, ...], Field(exclude_if=lambda value: not value)] = ()
    """[unit] Usual time divided by the minimum over passes, which `forward_s` holds. Empty: 1 for every unit."""
    backward_usual: Annotated[tuple[float, ...], Field(exclude_if=lambda value: not value)] = ()
    """[unit] The same ratio for `backward_s`."""
    simulated: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """True if computed from FLOPs and the device's stated speed instead of measured."""
    profiling_s: Annotated[float | None, Field(exclude_if=lambda value: value is None)] = None
    """Duration of the measurement: wall time, or CPU time divided by cores on an emulated device; None if simulated."""
    codecs: Annotated[tuple[CodecTime, ...], Field(exclude_if=lambda value: not value)] = ()
    """Codecs that leave elements out stand here once per measured ratio. Empty unless the run compresses links."""
    feedback_s_per_byte: Annotated[float, Field(exclude_if=lambda value: not value)] = 0.0
    """Seconds, for each byte of a dense message, of adding to it what the last one lost and of what is lost now, beside
    encoding and decoding it. 0: not measured."""
    stretch: Annotated[float, Field(exclude_if=lambda value: value == 1.0)] = 1.0
    """Wall time of a second of the times above while the device computes without a pause: what a quota, other programs
    and other devices of its machine let it have. At least 1; 1 where the times are wall time."""
    spread: Annotated[Spread | None, Field(exclude_if=lambda value: value is None)] = None
    """Of whole passes through the model; None: unknown."""
    update_s: Annotated[tuple[float, ...], Field(exclude_if=lambda value: not value)] = ()
    """[unit] An optimizer step, and the norms of gradients, of all that may be trained in the unit. Empty: no time."""
    message_wait_s: Annotated[float, Field(exclude_if=lambda value: not value)] = 0.0
    """Mean time that a thread waits for a processor when a message wakes it beside computing devices, beyond the least
    that was seen, which links were measured with. Wall time."""
    gates: Annotated[GateTimes | None, Field(exclude_if=lambda value: value is None)] = None
    """None: not measured, a gated unit takes the share of its time that is left."""
    partial: Annotated[PartialPasses | None, Field(exclude_if=lambda value: value is None)] = None
    """None: not measured, a pass of which a part is needed takes as long as the whole."""
    activation_share: Annotated[float, Field(exclude_if=lambda value: value == 1.0)] = 1.0
    """What it takes of the units' activation and workspace bytes, which are those of a CPU where there is one."""

    def __post_init__(self) -> None:
        owner = f"times of {self.device}"
        not_negative(owner, runtime_bytes=self.runtime_bytes, profiling_s=self.profiling_s or 0.0)
        finite(owner, message_wait_s=self.message_wait_s, feedback_s_per_byte=self.feedback_s_per_byte)
        not_negative(owner, message_wait_s=self.message_wait_s, feedback_s_per_byte=self.feedback_s_per_byte)
        if self.update_s and len(self.update_s) != len(self.forward_s):
            raise Refused(f"{owner}: update_s needs one number for each of {len(self.forward_s)} units")
        partial = self.partial
        if partial and {*map(len, (partial.below, partial.passed, partial.lowest))} != {len(self.forward_s)}:
            raise Refused(f"{owner}: partial needs one number for each of {len(self.forward_s)} units")
        for value in self.update_s:
            finite(owner, update_s=value)
            not_negative(owner, update_s=value)
        finite(f"times of {self.device}", stretch=self.stretch)
        finite(owner, activation_share=self.activation_share)
        if not 0 < self.activation_share <= 1:
            raise Refused(f"{owner}: activation_share is {self.activation_share}; it is above 0 and at most 1")
        if self.stretch < 1:
            raise Refused(f"times of {self.device}: stretch is {self.stretch}; it is at least 1")
        for name, table in (("forward_s", self.forward_s), ("backward_s", self.backward_s)):
            for row in table:
                for value in row:
                    finite(f"times of {self.device}", **{name: value})
                    not_negative(f"times of {self.device}", **{name: value})
        for name, ratios in (("forward_usual", self.forward_usual), ("backward_usual", self.backward_usual)):
            if ratios and len(ratios) != len(self.forward_s):
                raise Refused(
                    f"times of {self.device}: {name} needs one number for each of {len(self.forward_s)} units"
                )
            for ratio in ratios:
                positive(f"times of {self.device}", **{name: ratio})

    def codec_time(self, codec: str, ratio: float = 1.0) -> CodecTime:
        """Return the time of a codec, which is linear in the share of kept elements: the line through the lowest and
        the highest measured ratio, up to this one.

        Codecs that were not measured, and `dense`, take no time.
        """
        known = sorted((time for time in self.codecs if time.codec == codec), key=lambda time: time.ratio)
        if not known:
            return CodecTime(codec=codec, ratio=ratio, encode_s_per_byte=0.0, decode_s_per_byte=0.0)
        low, high = known[0], known[-1]
        part = 0.0
        if low.ratio < high.ratio:
            part = min(1.0, (1 / low.ratio - 1 / ratio) / (1 / low.ratio - 1 / high.ratio))

        def between(one: float, other: float) -> float:
            return max(0.0, one + part * (other - one))

        return CodecTime(
            codec=codec,
            ratio=ratio,
            encode_s_per_byte=between(low.encode_s_per_byte, high.encode_s_per_byte),
            decode_s_per_byte=between(low.decode_s_per_byte, high.decode_s_per_byte),
            encode_s=between(low.encode_s, high.encode_s),
            decode_s=between(low.decode_s, high.decode_s),
        )

    def usual_factors(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """[unit] factors that turn the minimum forward and backward times into usual times of a busy device."""
        ones = (1.0,) * len(self.forward_s)
        forward, backward = self.forward_usual or ones, self.backward_usual or ones
        return tuple(k * self.stretch for k in forward), tuple(k * self.stretch for k in backward)


@record
class Profile:
    """The `profile` artifact; the graph of its units is `graph.json` of the `model` artifact."""

    model: str
    units: tuple[Unit, ...]
    batch_sizes: tuple[int, ...]
    times: tuple[DeviceTimes, ...]
    optimizer_bytes_per_param_byte: float = 2.0
    subnets: Annotated[tuple[Subnet, ...], Field(exclude_if=lambda value: not value)] = ()
    """Heads with their scores, block by block; empty unless the run asks for scores."""
    scored_rows: Annotated[tuple[int, ...], Field(exclude_if=lambda value: not value)] = ()
    """Rows of the training split that gradients and Fisher scores are of, micro-batch after micro-batch: those of the
    first round."""
    element_bytes: Annotated[int, Field(exclude_if=lambda value: value == ELEMENT_BYTES)] = ELEMENT_BYTES
    """Size of an element that a codec may change: 8 in a model of float64."""
    tied_bytes: Annotated[dict[str, int], Field(exclude_if=lambda value: not value)] = field(default_factory=dict)
    """Name of a trained parameter that several units share (`Unit.tied`) -> its bytes."""
    shared_bytes: Annotated[dict[str, int], Field(exclude_if=lambda value: not value)] = field(default_factory=dict)
    """Name of a parameter that several units share -> what a segment holds of it once, beside `tied_bytes`: all of a
    frozen one (`Unit.frozen_tied`), the copy in half precision of a trained one."""

    def __post_init__(self) -> None:
        if not self.units:
            raise Refused("profile: it needs at least one unit")
        distinct("profile", "unit name", (unit.name for unit in self.units))
        distinct("profile", "device", (times.device for times in self.times))
        not_negative("profile", optimizer_bytes_per_param_byte=self.optimizer_bytes_per_param_byte)
        if not self.batch_sizes or list(self.batch_sizes) != sorted(set(self.batch_sizes)):
            raise Refused(f"profile: batch_sizes must ascend without repeats (got {list(self.batch_sizes)})")
        positive("profile", first_batch_size=self.batch_sizes[0], element_bytes=self.element_bytes)
        self._validate_subnets()
        shape = (len(self.units), len(self.batch_sizes))
        for times in self.times:
            for name, table in (("forward_s", times.forward_s), ("backward_s", times.backward_s)):
                if len(table) != shape[0] or any(len(row) != shape[1] for row in table):
                    raise Refused(
                        f"profile: {name} of {times.device} must be {shape[0]} units x {shape[1]} batch sizes"
                    )

    def _validate_subnets(self) -> None:
        distinct("profile", "subnet", (subnet.name for subnet in self.subnets))
        if len({len(subnet.fisher) for subnet in self.subnets}) > 1:
            raise Refused("profile: every subnet must be scored on the same micro-batches")
        known, taken = {unit.name for unit in self.units}, dict.fromkeys((unit.name for unit in self.units), 0.0)
        for part in (part for subnet in self.subnets for part in subnet.parts):
            if part.unit not in known:
                raise Refused(f"profile: a subnet has a part of unit {part.unit}, which the model does not have")
            taken[part.unit] += part.share
        for unit, share in taken.items():
            if share > 1 + 1e-9:
                raise Refused(f"profile: subnets have {share:.6f} of unit {unit}; together at most all of it")

    def unit(self, name: str) -> Unit:
        """Return the unit called `name`. Refused: an unknown name."""
        return self.units[self.position(name)]

    def position(self, name: str) -> int:
        """Index of the unit called `name` in `units`. Refused: an unknown name."""
        for index, unit in enumerate(self.units):
            if unit.name == name:
                return index
        raise Refused(f"profile: no unit {name!r}")

    @property
    def shares_weights(self) -> bool:
        """Whether units share weights that a device holds once where it has both."""
        return bool(self.tied_bytes or self.shared_bytes)

    def repeated_bytes(self, units: Iterable[str]) -> int:
        """Return the bytes of trained parameters that several of these units share, each but once: their sums over
        units have them too often."""
        if not self.tied_bytes:
            return 0
        return sum((count - 1) * self.tied_bytes.get(name, 0) for name, count in self._readers(units).items())

    def awaited_bytes(self, units: Iterable[str]) -> int:
        """Return the bytes of gradients of trained parameters that several of these units read: a backward holds the
        first one until the others have come."""
        if not self.tied_bytes:
            return 0
        return sum(self.tied_bytes.get(name, 0) for name, count in self._readers(units).items() if count > 1)

    def repeated_weight_bytes(self, units: Iterable[str]) -> int:
        """Return the bytes of weights, trained or frozen, that several of these units share, each but once."""
        if not self.shares_weights:
            return 0
        readers = self._readers(units)
        held = {name: self.tied_bytes.get(name, 0) + self.shared_bytes.get(name, 0) for name in readers}
        return sum((count - 1) * held[name] for name, count in readers.items())

    def _readers(self, units: Iterable[str]) -> Counter[str]:
        """Return parameter that units share -> how many of these units read it."""
        each = map(self.unit, units)
        return Counter(name for unit in each for name in (*unit.tied, *unit.frozen_tied))

    def weight_bytes(self, units: Iterable[str]) -> int:
        """Return the bytes of the parameters and buffers of these units, each counted once."""
        names = tuple(units)
        each = map(self.unit, names)
        return sum(unit.param_bytes + unit.buffer_bytes for unit in each) - self.repeated_weight_bytes(names)

    def trainable_bytes(self, units: Iterable[str]) -> int:
        """Return the bytes of the trained parameters of these units, each counted once."""
        names = tuple(units)
        return sum(self.unit(name).trainable_bytes for name in names) - self.repeated_bytes(names)

    def times_of(self, device: str) -> DeviceTimes:
        """Return the times of one device. Refused: a device that was not profiled."""
        for times in self.times:
            if times.device == device:
                return times
        raise Refused(
            f"profile: device {device!r} was not profiled; profiled are {', '.join(t.device for t in self.times)}"
        )
