"""The problem of kind "hpp": layers, devices, times and links as plain numbers."""

from typing import Literal

from fleetune.contracts.record import record


@record
class Layer:
    """A piece of the model; cuts lie between neighbours."""

    name: str
    param_bytes: int
    activation_bytes: int
    """Kept between forward and backward, per sample."""
    flops: int
    """Forward, per sample."""
    output_bytes: int
    """Everything that crosses a cut placed after this layer, forward, per sample."""
    gradient_bytes: int | None = None
    """The same backward; None: output_bytes."""
    trainable_bytes: int | None = None
    """Of param_bytes; None: all of them."""


@record
class Device:
    """A machine."""

    name: str
    memory_bytes: int


@record
class Problem:
    """Plan one round of `micro_batches` micro-batches of `micro_batch` samples."""

    kind: Literal["hpp"] = "hpp"
    micro_batch: int
    micro_batches: int
    layers: tuple[Layer, ...]
    devices: tuple[Device, ...]
    batch_sizes: tuple[int, ...]
    forward_s: tuple[tuple[tuple[float, ...], ...], ...]
    """[device][layer][batch size]"""
    backward_s: tuple[tuple[tuple[float, ...], ...], ...]
    """[device][layer][batch size]"""
    bandwidth_bytes_per_s: tuple[tuple[float | None, ...], ...]
    """[from][to]; the diagonal is not read."""
    latency_s: tuple[tuple[float | None, ...], ...]
    """[from][to]; the diagonal is not read."""
    optimizer_bytes_per_param_byte: float = 2.0
    snapshots: int = 0
    """1: every device also keeps a rollback copy of its trainable state."""
    warmup: str | tuple[int, ...] = "2(P-p)-1"
    """A policy's name, `free`, or K of every stage (which fixes how many there are)."""
