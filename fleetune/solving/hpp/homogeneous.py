"""The averaged fleet that planners for homogeneous clusters assume: every device is the average device, every link the
average link without latency, and times are proportional to samples."""

import numpy as np

from fleetune.solving.hpp.chain_cuts import run_edges
from fleetune.solving.hpp.draft import Draft, DraftStage
from fleetune.solving.hpp.instance import Instance, fastest_devices
from fleetune.solving.hpp.sample_allocation import even_shares


class HomogeneousFleet:
    """Running sums of the average device and costs of cuts, at each edge of a chain of runs of layers.

    As many devices take part as can have a sample in every stage; the slowest are left out. `stages` is the number of
    stages where the problem lists warm-ups, else None.
    """

    def __init__(self, instance: Instance, most_runs: int) -> None:
        self.instance = instance
        listed = instance.problem.warmup
        self.stages = None if isinstance(listed, str) else len(listed)
        self.group = instance.samples
        """Largest number of devices of a stage."""
        self.devices = fastest_devices(instance, (self.stages or instance.layers) * instance.samples)
        count = self.count = len(self.devices)
        self.edges = run_edges(instance, max(most_runs, count))
        self.runs = len(self.edges) - 1
        links = instance.bandwidth[np.ix_(self.devices, self.devices)][~np.eye(count, dtype=bool)]
        self.bandwidth = float(np.mean(links)) if links.size else np.inf
        self.forward_s = np.mean(instance.forward_s[self.devices, -1], axis=0)[self.edges]
        """[edge]: seconds of a whole micro-batch."""
        self.backward_s = np.mean(instance.backward_s[self.devices, -1], axis=0)[self.edges]
        self.trainable_bytes = instance.trainable_bytes[self.edges].astype(np.float64)
        self.output_s = instance.samples * instance.output_bytes[self.edges] / self.bandwidth
        """[edge]: seconds of a whole micro-batch across a cut there."""
        self.gradient_s = instance.samples * instance.gradient_bytes[self.edges] / self.bandwidth

    def draft(self, cuts: list[int], sizes: list[int]) -> Draft:
        """Stages between `cuts` (indices into `edges`, both ends included) on the next `sizes` devices each, with even
        shares."""
        stages, taken = [], 0
        for first, end, size in zip(cuts[:-1], cuts[1:], sizes, strict=True):
            devices = tuple(self.devices[taken : taken + size])
            taken += size
            span = int(self.edges[first]), int(self.edges[end])
            stages.append(DraftStage(*span, devices, even_shares(self.instance.samples, size)))
        return Draft(tuple(stages), tuple(self.instance.warmups(len(stages))))
