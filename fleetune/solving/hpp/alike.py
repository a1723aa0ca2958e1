"""A fleet as planners for homogeneous clusters see it: devices that are all the average one, links that are all the
average one without latency, times that shrink in proportion to the samples."""

import numpy as np

from fleetune.solving.hpp.case import Case
from fleetune.solving.hpp.chain import runs
from fleetune.solving.hpp.draft import Draft, Stage
from fleetune.solving.hpp.whole import fastest


class Alike:
    """The numbers of the average device at each edge of a chain of runs: running sums, and what a cut costs.

    As many devices as can have a sample in every stage take part, the slowest left out. `stages` is how many there
    must be where the problem lists warm-ups, else None.
    """

    def __init__(self, case: Case, most_runs: int) -> None:
        self.case = case
        listed = case.problem.warmup
        self.stages = None if isinstance(listed, str) else len(listed)
        self.group = case.samples
        """The most devices of a stage."""
        self.devices = fastest(case, (self.stages or case.layers) * case.samples)
        count = self.count = len(self.devices)
        self.edges = runs(case, max(most_runs, count))
        self.runs = len(self.edges) - 1
        links = case.bandwidth[np.ix_(self.devices, self.devices)][~np.eye(count, dtype=bool)]
        self.bandwidth = float(np.mean(links)) if links.size else np.inf
        self.forward_s = np.mean(case.forward_s[self.devices, -1], axis=0)[self.edges]
        """[edge]: of a whole micro-batch."""
        self.backward_s = np.mean(case.backward_s[self.devices, -1], axis=0)[self.edges]
        self.trainable_bytes = case.trainable_bytes[self.edges].astype(np.float64)
        self.output_s = case.samples * case.output_bytes[self.edges] / self.bandwidth
        """[edge]: a whole micro-batch across a cut there."""
        self.gradient_s = case.samples * case.gradient_bytes[self.edges] / self.bandwidth

    def laid(self, cuts: list[int], sizes: list[int]) -> Draft:
        """Stages between `cuts` (places in `edges`, both ends among them) on the next `sizes` devices in the order
        given, samples split evenly."""
        stages, taken = [], 0
        for first, end, size in zip(cuts[:-1], cuts[1:], sizes, strict=True):
            devices = tuple(self.devices[taken : taken + size])
            taken += size
            span = int(self.edges[first]), int(self.edges[end])
            stages.append(Stage(*span, devices, even(self.case.samples, size)))
        return Draft(tuple(stages), tuple(self.case.warmups(len(stages))))


def even(samples: int, count: int) -> tuple[int, ...]:
    """Shares that differ by one at most, the larger first."""
    return tuple(samples // count + (k < samples % count) for k in range(count))
