"""Costs of runs of neighbouring units by the clock's times: on a device, and on a group of devices that share samples.

Units that may not be cut apart form a block; a run is a pair of edges (i, j), the blocks i..j-1. Costs are computed
for all runs at once, as a matrix [i, j] that is valid only where i < j. Bytes are those of kind "hpp" (`LayerBytes`)
and shares those of its `sample_allocation`; what is kept here are the matrices, each computed once.
"""

from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fleetune.arrays import Bools, Floats, Ints
from fleetune.clock import Clock
from fleetune.clock.costs import RECEIVED_PER_GRADIENT_BYTE
from fleetune.contracts.profile import Unit, fewest_samples
from fleetune.planning.layers import cut_places, join_units
from fleetune.planning.strategy import Problem, free_bytes
from fleetune.solving.hpp.instance import LayerBytes, RepeatedBytes
from fleetune.solving.hpp.sample_allocation import allocate, allocate_runs

Group = tuple[str, ...]


class Shortfall(NamedTuple):
    """Bytes that a device lacks for a run with `samples` samples of each of `kept` micro-batches; 0 or less: none.
    Infinite: a micro-batch has not the fewest samples of the run for each device of the group."""

    missing_bytes: float
    device: str
    samples: int
    run: tuple[int, int]
    kept: int


class SegmentCosts:
    """Costs of runs on single devices."""

    def __init__(self, problem: Problem, edges: list[int] | None = None) -> None:
        """edges: positions in the list of units where a segment may begin or end; None: `cut_places`."""
        self.problem = problem
        self.clock = Clock(problem.fleet, problem.profile)
        units = problem.profile.units
        self.edges = cut_places(units) if edges is None else edges
        self._running: dict[str, Floats] = {}
        self.bytes = LayerBytes.of(
            [join_units(units[i:j]) for i, j in pairwise(self.edges)],
            problem.profile.optimizer_bytes_per_param_byte,
            received_per_byte=RECEIVED_PER_GRADIENT_BYTE,
        )._replace(repeated=self._repeated())
        self._fewest = np.array([fewest_samples(units[i:j]) for i, j in pairwise(self.edges)])
        all_edges = np.arange(len(self.edges))
        self._runs = all_edges[:, None], all_edges[None, :]

    def _repeated(self) -> RepeatedBytes | None:
        """What units of a run share and a device holds once; None where units share nothing."""
        profile, edges = self.problem.profile, self.edges
        shared = [{*unit.tied, *unit.frozen_tied} for unit in profile.units]
        if not any(shared):
            return None
        weights, trained, awaited = (np.zeros((len(edges), len(edges)), np.int64) for _ in range(3))
        for name in sorted(set().union(*shared)):
            before = np.cumsum([0, *(name in names for names in shared)])[edges]
            again = np.maximum(before[None, :] - before[:, None] - 1, 0)
            trained += again * profile.tied_bytes.get(name, 0)
            awaited += (again > 0) * profile.tied_bytes.get(name, 0)
            weights += again * (profile.tied_bytes.get(name, 0) + profile.shared_bytes.get(name, 0))
        return RepeatedBytes(weights, trained, awaited)

    @property
    def blocks(self) -> int:
        """Number of pieces that the model can be cut into."""
        return len(self.edges) - 1

    def units(self, i: int, j: int) -> tuple[Unit, ...]:
        """The units of a run."""
        return self.problem.profile.units[self.edges[i] : self.edges[j]]

    def running_seconds(self, device: str, samples: int) -> Floats:
        """[edge]: forward plus backward seconds of all units before the edge."""
        total: Floats = self.running(device)[samples - 1]
        return total

    def running(self, device: str) -> Floats:
        """[samples - 1, edge]: the same for every number of samples up to a micro-batch."""
        if device not in self._running:
            times = self.clock.table_s(device, self.problem.micro_batch_samples)
            total = np.concatenate([np.zeros((len(times), 1)), np.cumsum(times, axis=1)], axis=1)
            self._running[device] = total[:, self.edges]
        return self._running[device]

    def seconds(self, device: str, samples: int) -> Floats:
        """[i, j]: forward plus backward seconds of `samples` samples; infinite unless i < j."""
        total = self.running_seconds(device, samples)
        return np.where(self.forwards, total[None, :] - total[:, None], np.inf)

    def missing(self, device: str, kept_samples: int, members: int = 1) -> Floats:
        """[i, j]: bytes that the device lacks with `kept_samples` samples kept, in a group of so many `members`;
        negative where there is room."""
        peaks = self.bytes.peak(*self._runs, kept_samples, members)
        return np.asarray(peaks - free_bytes(self.problem, device), np.float64)

    def max_samples(self, device: str, kept: int, members: int) -> Ints:
        """[i, j]: largest share that fits the device, in a group of so many `members`, with `kept` micro-batches
        between forward and backward."""
        batch = self.problem.micro_batch_samples
        return self.bytes.max_samples(*self._runs, free_bytes(self.problem, device), kept, batch, members)

    def least_samples(self, i: int, j: int) -> int:
        """Fewest samples of a micro-batch that a device can train a run on."""
        return int(np.max(self._fewest[i:j]))

    @cached_property
    def least(self) -> Ints:
        """[i, j]: `least_samples`; 1 unless i < j."""
        found = np.ones((self.blocks + 1, self.blocks + 1), np.int64)
        for i in range(self.blocks):
            found[i, i + 1 :] = np.maximum.accumulate(self._fewest[i:])
        return found

    @cached_property
    def forwards(self) -> Bools:
        """[i, j]: whether i < j."""
        return np.triu(np.ones((self.blocks + 1, self.blocks + 1), dtype=bool), k=1)


class GroupCosts:
    """Costs of runs on groups of devices."""

    def __init__(self, costs: SegmentCosts) -> None:
        self.costs = costs
        self.batch = costs.problem.micro_batch_samples
        self._seconds: dict[tuple[Group, int], Floats] = {}
        self._missing: dict[tuple[Group, int], Floats] = {}

    def seconds(self, group: Group, kept: int) -> Floats:
        """[i, j]: the slowest member's forward plus backward seconds; infinite where memory is short. In column order,
        which `best_cuts` reads."""
        key = (group, kept)
        if key not in self._seconds:
            if len(group) == 1:
                fits = self.costs.missing(group[0], kept * self.batch) <= 0
                seconds = np.where(fits, self.costs.seconds(group[0], self.batch), np.inf)
            else:
                seconds = self._slowest(group, kept)
            self._seconds[key] = np.asfortranarray(seconds)
        return self._seconds[key]

    def missing(self, group: Group, kept: int) -> Floats:
        """[i, j]: bytes that the worst member lacks with the allocation that minimises this; 0 where all fit."""
        key = (group, kept)
        if key not in self._missing:
            if len(group) == 1:
                short = np.maximum(self.costs.missing(group[0], kept * self.batch), 0.0)
                self._missing[key] = np.where(self.costs.forwards, short, np.inf)
            else:
                self._missing[key] = self._each_run(
                    lambda i, j: max(0.0, self.worst_shortfall(group, kept, (i, j)).missing_bytes)
                )
        return self._missing[key]

    def worst_shortfall(self, group: Group, kept: int, run: tuple[int, int]) -> Shortfall:
        """The shortfall of the worst member behind `missing`."""
        least = self.costs.least_samples(*run)
        if len(group) * least > self.batch:
            return Shortfall(np.inf, group[0], least, run, kept)
        peaks = self.costs.bytes.peak(*run, kept * np.arange(1, self.batch + 1), len(group))
        needs = [(peaks - free_bytes(self.costs.problem, device)).astype(np.float64).tolist() for device in group]
        shares = [self.batch] if len(group) == 1 else allocate(needs, [self.batch] * len(group), self.batch, least)
        assert shares is not None, "there are samples for each"
        missing = [need[y - 1] for need, y in zip(needs, shares, strict=True)]
        worst = max(range(len(group)), key=missing.__getitem__)
        return Shortfall(missing[worst], group[worst], shares[worst], run, kept)

    def shares(self, group: Group, kept: int, i: int, j: int) -> list[int] | None:
        """Samples of each member for run (i, j), by measured speed within memory; None where they do not fit."""
        if len(group) == 1:
            return [self.batch]
        most = [int(self.costs.max_samples(device, kept, len(group))[i, j]) for device in group]
        times = [self.costs.running(device) for device in group]
        seconds = [(total[:, j] - total[:, i]).tolist() for total in times]
        return allocate(seconds, most, self.batch, self.costs.least_samples(i, j))

    def _slowest(self, group: Group, kept: int) -> Floats:
        """Allocate samples for all runs at once; the few runs where a measured time falls with more samples are
        allocated one after another."""
        count = self.costs.blocks + 1
        most = np.stack([self.costs.max_samples(device, kept, len(group)) for device in group])
        times = [self.costs.running(device) for device in group]
        rows, columns = np.indices((count, count))

        def seconds(d: int, samples: Ints) -> Floats:
            table, y = times[d], np.minimum(samples, self.batch) - 1
            return np.asarray(table[y, columns] - table[y, rows])

        least = self.costs.least
        shares = allocate_runs(seconds, most, self.batch, least)
        slowest = np.max([seconds(d, shares[d]) for d in range(len(group))], axis=0)
        fits = (most >= least).all(axis=0) & (most.sum(axis=0) >= self.batch) & self.costs.forwards
        fits &= len(group) * least <= self.batch
        result = np.where(fits, slowest, np.inf)
        for i, j in np.argwhere(fits & ~_growing(times)):
            own = self.shares(group, kept, i, j)
            assert own is not None, "it fits"
            result[i, j] = max(float(t[y - 1, j] - t[y - 1, i]) for t, y in zip(times, own, strict=True))
        return result

    def _each_run(self, value: Callable[[int, int], float]) -> Floats:
        count = self.costs.blocks + 1
        result = np.full((count, count), np.inf)
        for i in range(count):
            for j in range(i + 1, count):
                result[i, j] = value(i, j)
        return result


def _growing(times: list[Floats]) -> Bools:
    """[i, j]: whether no device is faster with more samples."""
    grows = np.ones((times[0].shape[1],) * 2, dtype=bool)
    for total in times:
        for fewer, more in zip(total, total[1:], strict=False):
            step = more - fewer
            grows &= step[None, :] >= step[:, None]
    return grows
