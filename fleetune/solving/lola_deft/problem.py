"""Problem and solution of kind "deft", as in JSON: devices, blocks and a band, and an allocation."""

from typing import Literal

from fleetune.contracts.record import finite, record
from fleetune.errors import Refused
from fleetune.solving.validation import MAX_VALUE, Axis, Real, validate_positive, validate_range, validate_table

MAX_S = 1e300
MAX_PAIRS = 20_000_000
"""Limit of devices times blocks; their tables take gigabytes."""


@record
class Problem:
    """Assign every block to a device of its own and give it a part of the band.

    Block 0 is nearest the output, so its backward is the shortest. Latency of a pair = compute_s + block_bits / (its
    part of the band x spectral_efficiency). Construction validates it; Refused names the first fault by field, device
    and block.
    """

    kind: Literal["deft"] = "deft"
    bandwidth: Literal["equal", "joint"]
    """`equal`: every block has the same part of the band; `joint`: the parts are chosen too."""
    compute_s: tuple[tuple[Real, ...], ...]
    """[device][block], per round."""
    memory_bytes: tuple[Real, ...]
    """[device]"""
    block_memory_bytes: tuple[Real, ...]
    """[block], memory that a device needs to tune it."""
    block_bits: Real
    """Bits that every device sends per round."""
    bandwidth_hz: Real
    """Whole band."""
    spectral_efficiency: tuple[Real, ...]
    """[device], bit/s/Hz: log2(1 + SNR)."""

    def __post_init__(self) -> None:
        for field, noun in (("memory_bytes", "device"), ("block_memory_bytes", "block")):
            if not getattr(self, field):
                raise Refused(f"{field}: the list is empty; give one number for each {noun}, at least one")
        devices: Axis = ("device", range(len(self.memory_bytes)))
        blocks: Axis = ("block", range(len(self.block_memory_bytes)))
        self._validate_size()
        validate_table("memory_bytes", self.memory_bytes, devices)
        validate_table("block_memory_bytes", self.block_memory_bytes, blocks)
        compute_s = validate_table("compute_s", self.compute_s, devices, blocks)
        if compute_s.max() > MAX_S:
            device, block = divmod(int(compute_s.argmax()), compute_s.shape[1])
            validate_range(f"compute_s of device {device}, block {block}", compute_s[device, block], 0, MAX_S)
        validate_table("spectral_efficiency", self.spectral_efficiency, devices)
        for device, efficiency in enumerate(self.spectral_efficiency):
            validate_positive(
                f"spectral_efficiency of device {device}", efficiency, hint="; leave out a device without a link"
            )
        validate_positive("bandwidth_hz", self.bandwidth_hz)
        validate_range("block_bits", self.block_bits, 0, MAX_VALUE)
        if self.block_bits != 0:
            validate_positive("block_bits", self.block_bits)

    def _validate_size(self) -> None:
        pairs = len(self.memory_bytes) * len(self.block_memory_bytes)
        if pairs > MAX_PAIRS:
            raise Refused(f"compute_s: {pairs} pairs of device and block; at most {MAX_PAIRS} are planned at once")


@record
class Iteration:
    """One iteration of `dual-ascent`."""

    dual_s: float
    """Minimum of the Lagrangian: no plan is faster."""
    primal_s: float
    """Latency of the allocation found, with the best division of the band."""
    best_s: float
    """Best latency so far."""

    def __post_init__(self) -> None:
        finite("iteration", dual_s=self.dual_s, primal_s=self.primal_s, best_s=self.best_s)


@record
class Solution:
    """Allocation of blocks and bandwidth, and its latency."""

    kind: Literal["deft"] = "deft"
    method: str
    feasible: bool
    """False only for methods that ignore memory; `reason` names the device, the block and the bytes."""
    reason: str = ""
    objective: float
    """Seconds until the slowest device has computed and sent its block."""
    lower_bound: float
    """No plan has a shorter latency."""
    solve_s: float
    deterministic: bool = True
    devices: tuple[int, ...]
    """[block], device index."""
    bandwidth_hz: tuple[float, ...]
    """[block]"""
    solved_by: Literal["crunch", "matching"] | None = None
    """Algorithm for equal parts: CRUNCH is correct only if latency and memory grow with depth."""
    trace: tuple[Iteration, ...] | None = None
    """Iterations of `dual-ascent`."""

    def __post_init__(self) -> None:
        finite("solution", objective=self.objective, lower_bound=self.lower_bound, solve_s=self.solve_s)
