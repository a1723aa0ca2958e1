"""The problem of kind "hpp": layers, devices, times and links as plain numbers, proven when it is made."""

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

from fleetune.contracts.record import one_of, record
from fleetune.errors import Refused
from fleetune.solving.fields import LARGEST, Real, Whole
from fleetune.solving.hpp.extent import prove_extent
from fleetune.solving.hpp.warmup import FREE, POLICIES, warmups
from fleetune.solving.proofs import Axis, Floats, ascending, at_least, counted, links, names, table

ROUNDING = 1e-12
"""Of the larger time: a line may end this far below 0 by the rounding of its numbers alone."""


def _warmup(value: Any) -> Any:
    """A name or whole numbers, so that a mistake is told in our words and not as one of two failed types."""
    if isinstance(value, list | tuple) and all(isinstance(k, int) and not isinstance(k, bool) for k in value):
        return tuple(value)
    if isinstance(value, str):
        return value
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
    raise Refused(f"warmup: {shown} is neither a policy's name nor a list of integers; {_allowed()}")


def _allowed() -> str:
    return f"allowed are {', '.join(POLICIES)}, {FREE} and a list of one integer per stage"


@record
class Layer:
    """A piece of the model; cuts lie between neighbours."""

    name: str
    param_bytes: Whole
    activation_bytes: Whole
    """Kept between forward and backward, per sample."""
    flops: Whole
    """Forward, per sample."""
    output_bytes: Whole
    """Everything that crosses a cut placed after this layer, forward, per sample."""
    gradient_bytes: Whole | None = None
    """The same backward; None: output_bytes."""
    trainable_bytes: Whole | None = None
    """Of param_bytes; None: all of them."""

    def __post_init__(self) -> None:
        for field in ("param_bytes", "activation_bytes", "flops", "output_bytes", "gradient_bytes", "trainable_bytes"):
            value = getattr(self, field)
            if value is not None:
                at_least(f"{field} of layer {self.name}", value, 0)
        if self.trainable_bytes is not None and self.trainable_bytes > self.param_bytes:
            raise Refused(
                f"trainable_bytes of layer {self.name}: {self.trainable_bytes} is above its param_bytes "
                f"{self.param_bytes}; give the part of them that is trained"
            )


@record
class Device:
    """A machine."""

    name: str
    memory_bytes: Whole

    def __post_init__(self) -> None:
        at_least(f"memory_bytes of device {self.name}", self.memory_bytes, 0)


@record
class Problem:
    """Plan one round of `micro_batches` micro-batches of `micro_batch` samples.

    Making one proves it; Refused names the first fault by field, device, layer and size.
    """

    kind: Literal["hpp"] = "hpp"
    micro_batch: Whole
    micro_batches: Whole
    layers: tuple[Layer, ...]
    devices: tuple[Device, ...]
    batch_sizes: tuple[Whole, ...]
    forward_s: tuple[tuple[tuple[Real, ...], ...], ...]
    """[device][layer][batch size]"""
    backward_s: tuple[tuple[tuple[Real, ...], ...], ...]
    """[device][layer][batch size]"""
    bandwidth_bytes_per_s: tuple[tuple[Real | None, ...], ...]
    """[from][to]; the diagonal is not read."""
    latency_s: tuple[tuple[Real | None, ...], ...]
    """[from][to]; the diagonal is not read."""
    optimizer_bytes_per_param_byte: Real = 2.0
    snapshots: Whole = 0
    """1: every device also keeps a rollback copy of its trainable state."""
    warmup: Annotated[str | tuple[int, ...], BeforeValidator(_warmup)] = "2(P-p)-1"
    """A policy's name, `free`, or K of every stage (which fixes how many there are)."""

    def __post_init__(self) -> None:
        at_least("micro_batch", self.micro_batch, 1)
        at_least("micro_batches", self.micro_batches, 1)
        layers, devices = [layer.name for layer in self.layers], [device.name for device in self.devices]
        names("layer", layers)
        names("device", devices)
        ascending("batch_sizes", self.batch_sizes, least=1)
        at_least("optimizer_bytes_per_param_byte", self.optimizer_bytes_per_param_byte, 0)
        one_of("problem", "snapshots", self.snapshots, (0, 1))
        self._prove_warmup()
        axes: list[Axis] = [("device", devices), ("layer", layers), ("batch size", self.batch_sizes)]
        forward = table("forward_s", self.forward_s, *axes)
        backward = table("backward_s", self.backward_s, *axes)
        bandwidth = links("bandwidth_bytes_per_s", self.bandwidth_bytes_per_s, devices, may_be_0=False)
        latency = links("latency_s", self.latency_s, devices, may_be_0=True)
        forward, backward = self._with_ends("forward_s", forward), self._with_ends("backward_s", backward)
        prove_extent(self, forward, backward, bandwidth, latency)

    def _prove_warmup(self) -> None:
        if isinstance(self.warmup, str):
            if self.warmup not in (*POLICIES, FREE):
                raise Refused(f"warmup: {self.warmup!r} is not known; {_allowed()}")
            return
        most = min(len(self.layers), len(self.devices))
        if not 1 <= len(self.warmup) <= most:
            raise Refused(
                f"warmup: {list(self.warmup)} fixes {counted(len(self.warmup), 'stage')}; "
                f"{counted(len(self.layers), 'layer')} on {counted(len(self.devices), 'device')} allow 1 to {most}"
            )
        at_least("warmup", max(self.warmup), 1, LARGEST)
        warmups(self.warmup, len(self.warmup), self.micro_batches)

    def _with_ends(self, field: str, seconds: Floats) -> Floats:
        """Times [device, layer, size] with those at 1 and micro_batch samples after them, none of which is below 0.

        By the rule of `clock.times.interpolate`. Lines between measured sizes stay above 0, and beyond an end they
        are lowest and highest at the farthest number of samples: these two are all there is to look at.
        """
        sizes = self.batch_sizes
        found = [seconds]
        for y, (one, other) in ((1, (0, 1)), (self.micro_batch, (-2, -1))):
            if len(sizes) == 1:
                found.append(seconds * (y / sizes[0]))
            elif y < sizes[0] if one == 0 else y > sizes[-1]:
                t0, t1 = seconds[:, :, one], seconds[:, :, other]
                times = t0 + (t1 - t0) * ((y - sizes[one]) / (sizes[other] - sizes[one]))
                self._prove_line(field, times, times < -ROUNDING * (t0 + t1), (y, sizes[one], sizes[other]))
                found.append(times[:, :, None])
        return np.concatenate(found, axis=2)

    def _prove_line(self, field: str, times: Floats, below: NDArray[np.bool_], sizes: tuple[int, int, int]) -> None:
        """Refuse the first time that is `below`; sizes: the samples asked for, and the two that the line runs by."""
        if below.any():
            device, layer = np.argwhere(below)[0]
            raise Refused(
                f"{field} of device {self.devices[device].name}, layer {self.layers[layer].name}: a batch of "
                f"{sizes[0]} would take {times[device, layer]:.3g} s on the line through batch sizes {sizes[1]} and "
                f"{sizes[2]}; measure a size nearer to it"
            )
