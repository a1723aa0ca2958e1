"""What trackers are told: named values at a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Values of one step."""

    step: int
    """Number of optimizer steps before the values were measured: the number of a round, and after the last one the
    number of rounds."""
    at_s: float
    """Seconds since 1970."""
    values: dict[str, float]
    """Name (`train/loss`) -> value."""


class Tracker(Protocol):
    """One place that points are written to; any method may raise any error."""

    name: str
    """The setting of `tracking` that asks for it."""

    def update(self, points: Sequence[Point]) -> None:
        """Bring the place up to these points: all of the run so far. Rounds of an earlier call may have been run again,
        so that points follow which are not those of then.
        """

    def close(self, state: str) -> None:
        """End it; `state` is that of the run: done, failed or interrupted."""


class Unsent:
    """Remembers what was sent to a place that cannot forget: no name of a step is sent twice."""

    def __init__(self) -> None:
        self._sent: set[tuple[int, str]] = set()
        self._points: list[Point] = []

    def of(self, points: Sequence[Point]) -> list[Point]:
        """Return the points with the values that were not sent yet."""
        known = len(self._points)
        same = list(points[:known]) == self._points
        fresh = [self._fresh(point) for point in points[known if same else 0 :]]
        return [point for point in fresh if point.values]

    def sent(self, point: Point) -> None:
        """Note that a point that `of` returned was sent."""
        self._sent.update((point.step, name) for name in point.values)

    def all_sent(self, points: Sequence[Point]) -> None:
        """Note that all these points were sent, in this call or before."""
        self._points = list(points)

    def _fresh(self, point: Point) -> Point:
        left = {name: value for name, value in point.values.items() if (point.step, name) not in self._sent}
        return Point(step=point.step, at_s=point.at_s, values=left)
