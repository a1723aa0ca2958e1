"""A plan of kind "hpp": the contract's JSON, key for key."""

from typing import Literal

from fleetune.contracts.record import finite, record


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
