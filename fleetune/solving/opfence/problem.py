"""The problem of kind "opfence": operators, devices and links as plain numbers, proven when it is made."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.solving.fields import Real, Whole
from fleetune.solving.opfence.extent import prove_extent
from fleetune.solving.opfence.graph import prove_graph
from fleetune.solving.proofs import Floats, at_least, links, names

MOST_RATIO = 1e15
"""Of elements to those kept; more leaves one element of anything that fits a memory."""
LEAST_ELEMENT_BYTES, MOST_ELEMENT_BYTES = 1e-6, 1e6
LEAST, MOST = 1e-60, 1e60
"""Flops per second, seconds, seconds per byte: between these no product or quotient leaves the range of floats."""


@record
class Operator:
    """A node of the graph; its inputs are the operators whose outputs it reads."""

    name: str
    flops: Whole
    """Forward, per micro-batch."""
    param_bytes: Whole
    output_bytes: Whole
    """Per micro-batch."""
    inputs: tuple[str, ...]

    def __post_init__(self) -> None:
        for field in ("flops", "param_bytes", "output_bytes"):
            at_least(f"{field} of operator {self.name}", getattr(self, field), 0)


@record
class Device:
    """A machine, or one accelerator of it."""

    name: str
    flops_per_s: Real
    memory_bytes: Whole

    def __post_init__(self) -> None:
        above_0(f"flops_per_s of device {self.name}", self.flops_per_s, LEAST, MOST)
        at_least(f"memory_bytes of device {self.name}", self.memory_bytes, 0)


@record
class Problem:
    """Place the operators of one pipelined forward of `micro_batches` micro-batches.

    Making one proves it; Refused names the first fault by field, operator and device.
    """

    kind: Literal["opfence"] = "opfence"
    operators: tuple[Operator, ...]
    """In any order."""
    devices: tuple[Device, ...]
    alpha_s: tuple[tuple[Real | None, ...], ...]
    """[from][to]: latency of a transfer; the diagonal is not read."""
    beta_s_per_byte: tuple[tuple[Real | None, ...], ...]
    """[from][to]; 0: infinitely fast. The diagonal is not read."""
    micro_batches: Whole
    optimizer_bytes_per_param_byte: Real = 2.0
    compression_ratio: Real | None = None
    """What the slowest link's elements are thinned by; None: everything is sent dense."""
    codec_bytes_per_kept_element: Real | None = None
    """On the wire, index included; needed with a ratio."""
    element_bytes: Real = 4.0
    """Of a dense element."""

    def __post_init__(self) -> None:
        devices = [device.name for device in self.devices]
        names("operator", [operator.name for operator in self.operators])
        names("device", devices)
        prove_graph([operator.name for operator in self.operators], [operator.inputs for operator in self.operators])
        at_least("micro_batches", self.micro_batches, 1)
        at_least("optimizer_bytes_per_param_byte", self.optimizer_bytes_per_param_byte, 0)
        alpha = links("alpha_s", self.alpha_s, devices, may_be_0=True)
        beta = links("beta_s_per_byte", self.beta_s_per_byte, devices, may_be_0=True)
        self._prove_compression()
        in_range("alpha_s", alpha, devices)
        in_range("beta_s_per_byte", beta, devices)
        prove_extent(self, float(np.max(alpha)), float(np.max(beta)))

    def _prove_compression(self) -> None:
        above_0("element_bytes", self.element_bytes, LEAST_ELEMENT_BYTES, MOST_ELEMENT_BYTES)
        if self.codec_bytes_per_kept_element is not None:
            kept_bytes = self.codec_bytes_per_kept_element
            above_0("codec_bytes_per_kept_element", kept_bytes, LEAST_ELEMENT_BYTES, MOST_ELEMENT_BYTES)
        if self.compression_ratio is not None:
            at_least("compression_ratio", self.compression_ratio, 1, MOST_RATIO)
            if self.codec_bytes_per_kept_element is None:
                raise Refused(
                    "codec_bytes_per_kept_element: this key is required where there is a compression_ratio; give what "
                    "a kept element takes on the wire, index included (12 for float32 and int64)"
                )


def above_0(field: str, value: float, least: float, most: float) -> None:
    """Refuse NaN, infinities, whatever is not above 0, and what is outside [least, most]."""
    at_least(field, value, 0)
    if value == 0:
        raise Refused(f"{field}: it is 0; give a number above 0")
    at_least(field, value, least, most)


def in_range(field: str, array: Floats, devices: Sequence[str]) -> None:
    """Refuse numbers outside [LEAST, MOST] that are not 0; array: [from][to]."""
    wrong = (array > MOST) | ((array < LEAST) & (array != 0))
    if wrong.any():
        a, b = np.argwhere(wrong)[0].tolist()
        raise Refused(
            f"{field} from {devices[a]} to {devices[b]}: {float(array[a, b])} is outside what can be computed with; "
            f"give 0 or a number from {LEAST} to {MOST}"
        )
