"""A plan of kind "hpp": the contract's JSON, key for key."""

from typing import Literal

from fleetune.contracts.record import finite, record


@record
class Share:
    """What a device does of every micro-batch."""

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
    """Of `hetpipe`: devices that form a pipeline of their own and meet the others at a parameter server."""

    devices: tuple[str, ...]
    stages: tuple[Stage, ...]
    micro_batches: int
    """Of one round, how many it takes."""


@record
class Solution:
    """The plan of one round, and what it costs."""

    kind: Literal["hpp"] = "hpp"
    method: str
    feasible: bool
    """False only of methods that ignore memory; `reason` has the device and the bytes it lacks."""
    reason: str = ""
    objective: float
    """Seconds of the round in the exact event simulation."""
    lower_bound: float | None
    """No plan has a shorter round; None: not known."""
    solve_s: float
    deterministic: bool
    """False: another run may find another plan, since a clock ended the search."""
    stages: tuple[Stage, ...]
    formula_round_s: float | None
    """Asteroid eq. (4); None: the method has no synchronous round."""
    memory_bytes: dict[str, int]
    """Peak of every device."""
    virtual_workers: tuple[VirtualWorker, ...] | None = None

    def __post_init__(self) -> None:
        finite("solution", objective=self.objective, solve_s=self.solve_s)
        for name in ("lower_bound", "formula_round_s"):
            value = getattr(self, name)
            if value is not None:
                finite("solution", **{name: value})
