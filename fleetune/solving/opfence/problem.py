"""Problem and solution of kind "opfence", as in JSON: operators, devices, links, and a placement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from fleetune.arrays import Floats
from fleetune.contracts.record import finite, record
from fleetune.errors import Refused
from fleetune.solving.opfence.graph import validate_graph
from fleetune.solving.validation import (
    MAX_VALUE,
    MAX_WHOLE,
    MIN_VALUE,
    Real,
    Whole,
    validate_links,
    validate_names,
    validate_positive,
    validate_range,
)

MAX_RATIO = 1e15
"""Limit of elements per kept element; more leaves one element of anything that fits a memory."""
MIN_ELEMENT_BYTES, MAX_ELEMENT_BYTES = 1e-6, 1e6


@record
class Operator:
    """A node of the graph; `inputs` names the operators whose outputs it reads."""

    name: str
    flops: Whole
    """Forward, per micro-batch."""
    param_bytes: Whole
    output_bytes: Whole
    """Per micro-batch."""
    inputs: tuple[str, ...]

    def __post_init__(self) -> None:
        for field in ("flops", "param_bytes", "output_bytes"):
            validate_range(f"{field} of operator {self.name}", getattr(self, field), 0)


@record
class Device:
    """A machine, or one accelerator of it."""

    name: str
    flops_per_s: Real
    memory_bytes: Whole

    def __post_init__(self) -> None:
        validate_positive(f"flops_per_s of device {self.name}", self.flops_per_s)
        validate_range(f"memory_bytes of device {self.name}", self.memory_bytes, 0)


@record
class Problem:
    """Place the operators of one pipelined forward pass of `micro_batches` micro-batches.

    Construction validates it; Refused names the first fault by field, operator and device.
    """

    kind: Literal["opfence"] = "opfence"
    operators: tuple[Operator, ...]
    """In any order."""
    devices: tuple[Device, ...]
    alpha_s: tuple[tuple[Real | None, ...], ...]
    """[from][to], latency of a transfer; the diagonal is ignored."""
    beta_s_per_byte: tuple[tuple[Real | None, ...], ...]
    """[from][to]; 0: infinitely fast. The diagonal is ignored."""
    micro_batches: Whole
    optimizer_bytes_per_param_byte: Real = 2.0
    compression_ratio: Real | None = None
    """Ratio of elements to kept elements on the slowest link; None: everything is sent dense."""
    codec_bytes_per_kept_element: Real | None = None
    """Bytes on the wire, index included; required with a ratio."""
    element_bytes: Real = 4.0
    """Bytes of a dense element."""

    def __post_init__(self) -> None:
        devices = [device.name for device in self.devices]
        validate_names("operator", [operator.name for operator in self.operators])
        validate_names("device", devices)
        validate_graph([operator.name for operator in self.operators], [operator.inputs for operator in self.operators])
        validate_range("micro_batches", self.micro_batches, 1)
        validate_range("optimizer_bytes_per_param_byte", self.optimizer_bytes_per_param_byte, 0)
        alpha = validate_links("alpha_s", self.alpha_s, devices, may_be_0=True)
        beta = validate_links("beta_s_per_byte", self.beta_s_per_byte, devices, may_be_0=True)
        self._validate_compression()
        validate_link_range("alpha_s", alpha, devices)
        validate_link_range("beta_s_per_byte", beta, devices)
        validate_limits(self, float(np.max(alpha)), float(np.max(beta)))

    def _validate_compression(self) -> None:
        validate_positive("element_bytes", self.element_bytes, MIN_ELEMENT_BYTES, MAX_ELEMENT_BYTES)
        if self.codec_bytes_per_kept_element is not None:
            kept_bytes = self.codec_bytes_per_kept_element
            validate_positive("codec_bytes_per_kept_element", kept_bytes, MIN_ELEMENT_BYTES, MAX_ELEMENT_BYTES)
        if self.compression_ratio is not None:
            validate_range("compression_ratio", self.compression_ratio, 1, MAX_RATIO)
            if self.codec_bytes_per_kept_element is None:
                raise Refused(
                    "codec_bytes_per_kept_element: this key is required where there is a compression_ratio; give what "
                    "a kept element takes on the wire, index included (12 for float32 and int64)"
                )


def validate_link_range(field: str, array: Floats, devices: Sequence[str]) -> None:
    """Refuse numbers outside [MIN_VALUE, MAX_VALUE] other than 0; array: [from][to]."""
    wrong = (array > MAX_VALUE) | ((array < MIN_VALUE) & (array != 0))
    if wrong.any():
        a, b = np.argwhere(wrong)[0].tolist()
        raise Refused(
            f"{field} from {devices[a]} to {devices[b]}: {float(array[a, b])} is outside what can be computed with; "
            f"give 0 or a number from {MIN_VALUE} to {MAX_VALUE}"
        )


Link = TypedDict("Link", {"from": str, "to": str, "bytes": int | float, "ratio": float})
"""Load of a directed pair of devices per micro-batch: bytes on the wire, and compression ratio (1: dense). A
TypedDict, because `from` is not a Python identifier."""


@record
class Solution:
    """Placement of the operators, and its cost."""

    kind: Literal["opfence"] = "opfence"
    method: str
    feasible: bool
    """False only for methods that ignore memory; `reason` names the device and the bytes it lacks."""
    reason: str = ""
    objective: float
    """Seconds of one pipelined forward pass by eq. (3)."""
    lower_bound: float | None
    """No placement that fits the memories is faster."""
    solve_s: float
    deterministic: bool
    """False if a time limit ended the search, so that another run may find another plan."""
    clusters: tuple[tuple[str, ...], ...]
    """Device names per cluster: Louvain communities, or all devices for methods that ignore links."""
    placement: dict[str, str]
    """Operator -> device, in the order of the operators."""
    links: tuple[Link, ...]
    """Links with traffic, by sender and receiver as listed."""

    def __post_init__(self) -> None:
        finite("solution", objective=self.objective, solve_s=self.solve_s)
        if self.lower_bound is not None:
            finite("solution", lower_bound=self.lower_bound)


MAX_S = 1e18
"""Limit of all work and traffic in sequence over the slowest link; more is a wrong unit."""
MAX_MICRO_BATCHES = 1_000_000_000
MAX_PAIRS = 4_000_000
"""Limit of operators times devices."""


def validate_limits(problem: Problem, alpha_s: float, beta_s_per_byte: float) -> None:
    """Refuse problems beyond the limits, naming the largest part; alpha and beta: of the slowest links."""
    operators, devices = problem.operators, problem.devices
    if problem.micro_batches > MAX_MICRO_BATCHES:
        raise Refused(f"micro_batches: {problem.micro_batches} is above {MAX_MICRO_BATCHES}; give fewer, larger ones")
    if len(operators) * len(devices) > MAX_PAIRS:
        raise Refused(
            f"operators: {len(operators)} on {len(devices)} devices are more than {MAX_PAIRS} pairs; join operators"
        )
    outputs = sum(operator.output_bytes for operator in operators)
    needed = {
        "param_bytes": (2 + problem.optimizer_bytes_per_param_byte) * sum(x.param_bytes for x in operators),
        "output_bytes": 1.0 * problem.micro_batches * outputs,
    }
    _validate_sum(MAX_WHOLE, "bytes", needed)
    rounds = problem.micro_batches * len(devices)
    taken = {
        "flops_per_s": sum(x.flops for x in operators) / min(x.flops_per_s for x in devices) * rounds,
        "alpha_s": alpha_s * len(operators) * rounds,
        "beta_s_per_byte": beta_s_per_byte * outputs * rounds,
    }
    _validate_sum(MAX_S, "s", taken)


def _validate_sum(most: float, unit: str, parts: dict[str, float]) -> None:
    if not sum(parts.values()) <= most:
        field = max(parts, key=lambda name: parts[name])
        raise Refused(
            f"{field}: all together come to {parts[field]:.3g} {unit}, beyond the {most:.3g} {unit} that can be "
            "computed with; check the unit"
        )
