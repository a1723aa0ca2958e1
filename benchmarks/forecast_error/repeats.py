"""The runs of one strategy on one fleet, and what their median says that a single one does not."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.forecast_error.runs import CompletedRun


@dataclass(frozen=True, slots=True)
class Repeats:
    """Runs that differ in nothing but the minutes in which they were profiled, planned and trained.

    A machine that others share is some percent faster or slower in each: an error that every run has stays in their
    median, one that lies in the minutes does not.
    """

    runs: tuple[CompletedRun, ...]

    @property
    def fleet(self) -> str:
        """The fleet's name."""
        return self.runs[0].fleet

    @property
    def strategy(self) -> str:
        """The strategy's name in the list."""
        return self.runs[0].strategy

    @property
    def error(self) -> float:
        """Median forecast error."""
        return self.median(lambda run: run.error)

    @property
    def noise(self) -> float | None:
        """Difference of the largest and the smallest error, which no forecast explains; None: one run."""
        errors = [run.error for run in self.runs]
        return max(errors) - min(errors) if len(errors) > 1 else None

    def median(self, value: Callable[[CompletedRun], float]) -> float:
        """Median of a value of the runs."""
        return statistics.median(value(run) for run in self.runs)

    def known_median(self, value: Callable[[CompletedRun], float | None]) -> float | None:
        """Median of a value that runs may lack; None where one lacks it."""
        found = [each for run in self.runs if (each := value(run)) is not None]
        return statistics.median(found) if len(found) == len(self.runs) else None


def grouped(runs: Iterable[CompletedRun]) -> Sequence[Repeats]:
    """The runs by fleet and strategy, in the order of their first."""
    by: dict[tuple[str, str], list[CompletedRun]] = {}
    for run in runs:
        by.setdefault((run.fleet, run.strategy), []).append(run)
    return [Repeats(tuple(each)) for each in by.values()]
