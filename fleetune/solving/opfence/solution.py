"""A plan of kind "opfence": the contract's JSON, key for key."""

from typing import Literal

from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from fleetune.contracts.record import finite, record

Link = TypedDict("Link", {"from": str, "to": str, "bytes": int | float, "ratio": float})
"""What a directed pair of devices carries of every micro-batch: bytes on the wire, and what its elements are thinned by
(1: dense). Not a record, because `from` is no name in Python."""


@record
class Solution:
    """Where each operator runs, and what that costs."""

    kind: Literal["opfence"] = "opfence"
    method: str
    feasible: bool
    """False only of methods that ignore memory; `reason` has the device and the bytes it lacks."""
    reason: str = ""
    objective: float
    """Seconds of one pipelined forward by eq. (3)."""
    lower_bound: float | None
    """No placement that fits the memories is faster."""
    solve_s: float
    deterministic: bool
    """False: another run may find another plan, since a clock ended the search."""
    clusters: tuple[tuple[str, ...], ...]
    """Devices that the method took as one: Louvain communities; all devices where it looks at no links."""
    placement: dict[str, str]
    """Operator to device, as the operators are listed."""
    links: tuple[Link, ...]
    """That carry anything, by sender and receiver as listed."""

    def __post_init__(self) -> None:
        finite("solution", objective=self.objective, solve_s=self.solve_s)
        if self.lower_bound is not None:
            finite("solution", lower_bound=self.lower_bound)
