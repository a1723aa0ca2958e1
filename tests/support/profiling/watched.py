"""Units that tell when they are run."""

from collections.abc import Callable
from typing import Any

from fleetune.models.segment import SegmentRunner


class Watched:
    """A unit that calls `on_run` with what it is run with, before it runs."""

    def __init__(self, segment: SegmentRunner, on_run: Callable[..., object]) -> None:
        self._segment, self._on_run = segment, on_run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._segment, name)

    def run(self, *given: Any) -> Any:
        """Run the unit."""
        self._on_run(*given)
        return self._segment.run(*given)
