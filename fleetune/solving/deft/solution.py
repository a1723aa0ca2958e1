"""A plan of kind "deft": the contract's JSON, key for key."""

from typing import Literal

from fleetune.contracts.record import finite, record


@record
class Iteration:
    """Of `dual-ascent`: where it stood."""

    dual_s: float
    """Value of the Lagrangian's minimum: no plan is faster."""
    primal_s: float
    """Latency of the blocks' allocation it found, the band divided at its best."""
    best_s: float
    """Of all until then."""

    def __post_init__(self) -> None:
        finite("iteration", dual_s=self.dual_s, primal_s=self.primal_s, best_s=self.best_s)


@record
class Solution:
    """Who tunes which block with which part of the band, and when the last one ends."""

    kind: Literal["deft"] = "deft"
    method: str
    feasible: bool
    """False only of methods that ignore memory; `reason` has the device, the block and the bytes."""
    reason: str = ""
    objective: float
    """Seconds until the slowest device has computed and sent its block."""
    lower_bound: float
    """No plan has a shorter latency."""
    solve_s: float
    deterministic: bool = True
    devices: tuple[int, ...]
    """Index of each block's device."""
    bandwidth_hz: tuple[float, ...]
    """Of each block."""
    solved_by: Literal["crunch", "matching"] | None = None
    """How blocks were allocated for equal parts: CRUNCH is right only where latency and memory grow with depth."""
    trace: tuple[Iteration, ...] | None = None
    """Of `dual-ascent`."""

    def __post_init__(self) -> None:
        finite("solution", objective=self.objective, lower_bound=self.lower_bound, solve_s=self.solve_s)
