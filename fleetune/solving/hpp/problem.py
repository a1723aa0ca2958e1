"""The problem of kind "hpp", validated on construction, and its solution: the JSON of `fleetune solve`, key by key.

Times and sizes beyond the limits below are errors of units. Refusing them here keeps every method free of overflow.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

from fleetune.arrays import Floats
from fleetune.clock.limits import MAX_ROUND_S
from fleetune.contracts.record import finite, one_of, record
from fleetune.errors import Refused
from fleetune.solving.validation import (
    MAX_WHOLE,
    Axis,
    Real,
    Whole,
    plural,
    validate_ascending,
    validate_links,
    validate_names,
    validate_range,
    validate_table,
)

WARMUP_POLICIES: dict[str, Callable[[int, int], int]] = {
    "2(P-p)-1": lambda parts, p: 2 * (parts - p) - 1,
    "2(P-p)": lambda parts, p: 2 * (parts - p),
    "P-p": lambda parts, p: parts - p,
    "2(P-p)+1": lambda parts, p: 2 * (parts - p) + 1,
}
"""Warm-up policy -> K_p, the number of forwards of stage p of P before its first backward. The first is Asteroid's
default, which counts every transfer as a pipeline step."""
FREE = "free"
"""The planner chooses K within memory."""
ROUNDING = 1e-12
"""Tolerance of extrapolated times below 0, as a share of the two measured times."""
MAX_BYTES = 2**62
"""Limit of the bytes that a round keeps or moves."""
MAX_TIMES = 50_000_000
"""Limit of layers x devices x samples: 0.4 GB per table of times."""
MAX_MICRO_BATCHES = 1_000_000


def warmups(policy: str | tuple[int, ...], parts: int, micro_batches: int) -> list[int]:
    """K of every segment, first to last, by a policy's name or as listed.

    Refused: an unknown policy, a list of another length, a K below 1, and a list that, capped at `micro_batches`,
    increases from a segment to the next, which would deadlock: the earlier segment waits for a gradient that the later
    one computes only after further forwards of the earlier one.
    """
    if isinstance(policy, str):
        if policy not in WARMUP_POLICIES:
            raise Refused(
                f"warmup: {policy!r} is not known; allowed are {', '.join(WARMUP_POLICIES)} and a list of integers"
            )
        return [WARMUP_POLICIES[policy](parts, p) for p in range(parts)]
    if len(policy) != parts:
        raise Refused(f"warmup: {list(policy)} has {len(policy)} entries for {parts} segments; give one for each")
    if min(policy) < 1:
        raise Refused(f"warmup: {list(policy)} has an entry below 1; every segment starts with a forward")
    capped = [min(k, micro_batches) for k in policy]
    if capped != sorted(capped, reverse=True):
        raise Refused(f"warmup: {list(policy)} increases towards the last segment, which deadlocks; let it fall")
    return list(policy)


def _warmup(value: Any) -> Any:
    """Parse a policy's name or a list of integers; one Refused instead of pydantic's two failed types."""
    if isinstance(value, list | tuple) and all(isinstance(k, int) and not isinstance(k, bool) for k in value):
        return tuple(value)
    if isinstance(value, str):
        return value
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
    raise Refused(f"warmup: {shown} is neither a policy's name nor a list of integers; {_allowed()}")


def _allowed() -> str:
    return f"allowed are {', '.join(WARMUP_POLICIES)}, {FREE} and a list of one integer per stage"


@record
class Layer:
    """A piece of the model; the model can be cut between neighbouring layers."""

    name: str
    param_bytes: Whole
    activation_bytes: Whole
    """Per sample, kept between forward and backward."""
    flops: Whole
    """Per sample, forward."""
    output_bytes: Whole
    """Per sample, everything that crosses a cut after this layer in the forward direction."""
    gradient_bytes: Whole | None = None
    """The same in the backward direction; None: output_bytes."""
    trainable_bytes: Whole | None = None
    """The part of param_bytes that is trained; None: all."""

    def __post_init__(self) -> None:
        for field in ("param_bytes", "activation_bytes", "flops", "output_bytes", "gradient_bytes", "trainable_bytes"):
            value = getattr(self, field)
            if value is not None:
                validate_range(f"{field} of layer {self.name}", value, 0)
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
        validate_range(f"memory_bytes of device {self.name}", self.memory_bytes, 0)


@record
class Problem:
    """One round of `micro_batches` micro-batches of `micro_batch` samples to be planned.

    Validated on construction: Refused names the first fault by field, device, layer and batch size.
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
    """1: every device keeps a rollback copy of its trainable state."""
    warmup: Annotated[str | tuple[int, ...], BeforeValidator(_warmup)] = "2(P-p)-1"
    """A policy's name, `free`, or K of every stage, which fixes the number of stages."""

    def __post_init__(self) -> None:
        validate_range("micro_batch", self.micro_batch, 1)
        validate_range("micro_batches", self.micro_batches, 1)
        layers, devices = [layer.name for layer in self.layers], [device.name for device in self.devices]
        validate_names("layer", layers)
        validate_names("device", devices)
        validate_ascending("batch_sizes", self.batch_sizes, least=1)
        validate_range("optimizer_bytes_per_param_byte", self.optimizer_bytes_per_param_byte, 0)
        one_of("problem", "snapshots", self.snapshots, (0, 1))
        self._check_warmup()
        axes: list[Axis] = [("device", devices), ("layer", layers), ("batch size", self.batch_sizes)]
        forward = validate_table("forward_s", self.forward_s, *axes)
        backward = validate_table("backward_s", self.backward_s, *axes)
        bandwidth = validate_links("bandwidth_bytes_per_s", self.bandwidth_bytes_per_s, devices, may_be_0=False)
        latency = validate_links("latency_s", self.latency_s, devices, may_be_0=True)
        forward, backward = self._with_ends("forward_s", forward), self._with_ends("backward_s", backward)
        _check_limits(self, forward, backward, bandwidth, latency)

    def _check_warmup(self) -> None:
        if isinstance(self.warmup, str):
            if self.warmup not in (*WARMUP_POLICIES, FREE):
                raise Refused(f"warmup: {self.warmup!r} is not known; {_allowed()}")
            return
        most = min(len(self.layers), len(self.devices))
        if not 1 <= len(self.warmup) <= most:
            raise Refused(
                f"warmup: {list(self.warmup)} fixes {plural(len(self.warmup), 'stage')}; "
                f"{plural(len(self.layers), 'layer')} on {plural(len(self.devices), 'device')} allow 1 to {most}"
            )
        validate_range("warmup", max(self.warmup), 1, MAX_WHOLE)
        warmups(self.warmup, len(self.warmup), self.micro_batches)

    def _with_ends(self, field: str, seconds: Floats) -> Floats:
        """`seconds` [device, layer, size], followed by the extrapolated times at 1 and at micro_batch samples.

        Extrapolation follows `clock.costs.interpolate`. A line is lowest and highest at its ends, so checking these
        two numbers of samples is enough. Refused where a time is below 0.
        """
        sizes = self.batch_sizes
        found = [seconds]
        for y, (one, other) in ((1, (0, 1)), (self.micro_batch, (-2, -1))):
            if len(sizes) == 1:
                found.append(seconds * (y / sizes[0]))
            elif y < sizes[0] if one == 0 else y > sizes[-1]:
                t0, t1 = seconds[:, :, one], seconds[:, :, other]
                times = t0 + (t1 - t0) * ((y - sizes[one]) / (sizes[other] - sizes[one]))
                self._check_line(field, times, times < -ROUNDING * (t0 + t1), (y, sizes[one], sizes[other]))
                found.append(times[:, :, None])
        return np.concatenate(found, axis=2)

    def _check_line(self, field: str, times: Floats, below: NDArray[np.bool_], sizes: tuple[int, int, int]) -> None:
        """Refuse the first time where `below` holds; sizes: its number of samples, and the two measured sizes."""
        if below.any():
            device, layer = np.argwhere(below)[0]
            raise Refused(
                f"{field} of device {self.devices[device].name}, layer {self.layers[layer].name}: a batch of "
                f"{sizes[0]} would take {times[device, layer]:.3g} s on the line through batch sizes {sizes[1]} and "
                f"{sizes[2]}; measure a size nearer to it"
            )


@record
class Share:
    """A device's samples of every micro-batch."""

    name: str
    samples: int


@record
class Stage:
    """A run of layers and the devices that share its samples."""

    layers: tuple[int, int]
    """[first, end)"""
    devices: tuple[Share, ...]
    warmup: int
    """Forwards before the first backward."""


@record
class VirtualWorker:
    """A pipeline of its own in a `hetpipe` plan, synchronised with others through a parameter server."""

    devices: tuple[str, ...]
    stages: tuple[Stage, ...]
    micro_batches: int
    """Number of a round's micro-batches that it processes."""


@record
class Solution:
    """The plan of one round and its costs."""

    kind: Literal["hpp"] = "hpp"
    method: str
    feasible: bool
    """False only for methods that ignore memory; `reason` then names the device and the missing bytes."""
    reason: str = ""
    objective: float
    """Seconds of the round in the exact event simulation."""
    lower_bound: float | None
    """Seconds; no plan has a shorter round. None: not known."""
    solve_s: float
    deterministic: bool
    """False: a time limit ended the search, so another run may find another plan."""
    stages: tuple[Stage, ...]
    formula_round_s: float | None
    """Seconds by Asteroid eq. (4); None: the method has no synchronous round."""
    memory_bytes: dict[str, int]
    """Device name -> peak bytes."""
    virtual_workers: tuple[VirtualWorker, ...] | None = None

    def __post_init__(self) -> None:
        finite("solution", objective=self.objective, solve_s=self.solve_s)
        for name in ("lower_bound", "formula_round_s"):
            value = getattr(self, name)
            if value is not None:
                finite("solution", **{name: value})


def _check_limits(problem: Problem, forward: Floats, backward: Floats, bandwidth: Floats, latency: Floats) -> None:
    """Refuse numbers that would overflow, naming the field that contributes most.

    forward, backward: seconds [device, layer, samples], extrapolated ends included; bandwidth, latency: [from, to].
    """
    if problem.micro_batches > MAX_MICRO_BATCHES:
        raise Refused(f"micro_batches: {problem.micro_batches} is above {MAX_MICRO_BATCHES}; give fewer, larger ones")
    layers, devices = len(problem.layers), len(problem.devices)
    if layers * devices * problem.micro_batch > MAX_TIMES:
        raise Refused(
            f"micro_batch: {layers} layers on {devices} devices for up to {problem.micro_batch} samples are more than "
            f"{MAX_TIMES} times to tell apart; give at most {MAX_TIMES // (layers * devices)} samples"
        )
    samples, rounds = problem.micro_batch * problem.micro_batches, problem.micro_batches
    state = (1 + problem.optimizer_bytes_per_param_byte) * 2 + 1
    kept = {
        "param_bytes": state * sum(layer.param_bytes for layer in problem.layers),
        "activation_bytes": 1.0 * samples * sum(layer.activation_bytes for layer in problem.layers),
    }
    crossing = sorted(layer.output_bytes + (layer.gradient_bytes or layer.output_bytes) for layer in problem.layers)
    moved = 1.0 * samples * sum(crossing[1 - min(layers, devices) :]) if min(layers, devices) > 1 else 0.0
    _check_sum(MAX_BYTES, "bytes", kept | {"output_bytes": moved})
    pairs = bandwidth[bandwidth > 0]
    one_after_another = {
        "forward_s": float(forward.max(axis=(0, 2)).sum()) * rounds,
        "backward_s": float(backward.max(axis=(0, 2)).sum()) * rounds,
        "bandwidth_bytes_per_s": (moved + kept["param_bytes"]) / float(pairs.min()) if pairs.size else 0.0,
        "latency_s": float(latency.max()) * 2 * (rounds + 1) * devices**2,
    }
    _check_sum(MAX_ROUND_S, "s", one_after_another)


def _check_sum(most: float, unit: str, parts: dict[str, float]) -> None:
    if not sum(parts.values()) <= most:
        field = max(parts, key=lambda name: parts[name])
        raise Refused(
            f"{field}: a round could come to {parts[field]:.3g} {unit} by it, more than can be counted "
            f"({most:.3g}); check its unit"
        )
