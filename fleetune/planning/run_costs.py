"""Costs of runs of neighbouring units: seconds and bytes on a device, and on a group of devices that share samples.

Units that may not be cut apart form a block; a run is a pair of edges (i, j), the blocks i..j-1. Costs are computed
for all runs at once, as a matrix [i, j] that is valid only where i < j.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fleetune.clock import Clock
from fleetune.contracts.profile import Unit
from fleetune.planning.layers import cut_places
from fleetune.planning.strategy import Problem
from fleetune.solving.hpp.instance import LayerBytes
from fleetune.solving.hpp.sample_allocation import allocate

Matrix = NDArray[np.float64]
Integers = NDArray[np.int64]
Group = tuple[str, ...]


class RunCosts:
    """Costs of runs on single devices, with each matrix computed once."""

    def __init__(self, problem: Problem, edges: list[int] | None = None) -> None:
        self.problem = problem
        self.clock = Clock(problem.fleet, problem.profile)
        units = problem.profile.units
        self.edges = cut_places(units) if edges is None else edges
        """Positions in the list of units where a segment may begin or end."""
        self._seconds: dict[tuple[str, int], Matrix] = {}
        self._bytes = LayerBytes(
            param=self._running(unit.param_bytes + unit.buffer_bytes for unit in units),
            trainable=self._running(unit.trainable_bytes for unit in units),
            activation=self._running(unit.activation_bytes for unit in units),
            state_per_byte=1 + problem.profile.optimizer_bytes_per_param_byte,
        )

    @property
    def blocks(self) -> int:
        """Number of pieces that the model can be cut into."""
        return len(self.edges) - 1

    def units(self, i: int, j: int) -> tuple[Unit, ...]:
        """The units of a run."""
        return self.problem.profile.units[self.edges[i] : self.edges[j]]

    def running_seconds(self, device: str, samples: int) -> Matrix:
        """[edge]: forward plus backward seconds of all units before the edge."""
        key = (device, samples)
        if key not in self._seconds:
            forward, backward = self.clock.unit_times(device, samples)
            total = np.concatenate([[0.0], np.cumsum(np.asarray(forward) + np.asarray(backward))])
            self._seconds[key] = total[self.edges]
        return self._seconds[key]

    def seconds(self, device: str, samples: int) -> Matrix:
        """[i, j]: forward plus backward seconds of `samples` samples; infinite unless i < j."""
        total = self.running_seconds(device, samples)
        return np.where(self.forwards, total[None, :] - total[:, None], np.inf)

    def missing(self, device: str, kept_samples: int) -> Matrix:
        """[i, j]: bytes that the device lacks with `kept_samples` samples kept; negative where there is room."""
        return self.idle_missing(device) + kept_samples * self.activation_bytes()

    def idle_missing(self, device: str) -> Matrix:
        """[i, j]: the same with no samples kept: runtime, weights and their state alone."""
        budget = self.problem.fleet.device(device).memory_bytes
        runtime = self.problem.profile.times_of(device).runtime_bytes
        return self._weights + float(runtime - budget)

    def activation_bytes(self) -> Matrix:
        """[i, j]: bytes kept per sample between forward and backward."""
        return np.asarray(self._bytes.activation[None, :] - self._bytes.activation[:, None], dtype=np.float64)

    @cached_property
    def forwards(self) -> NDArray[np.bool_]:
        """[i, j]: whether i < j."""
        return np.triu(np.ones((self.blocks + 1, self.blocks + 1), dtype=bool), k=1)

    @cached_property
    def _weights(self) -> Matrix:
        edges = np.arange(self.blocks + 1)
        return np.asarray(self._bytes.state(edges[:, None], edges[None, :]), dtype=np.float64)

    def _running(self, values: object) -> Integers:
        total = np.concatenate([[0], np.cumsum(np.fromiter(values, dtype=np.int64))])  # type: ignore[call-overload]
        return np.asarray(total[self.edges], dtype=np.int64)


def max_samples(costs: RunCosts, device: str, kept: int) -> Integers:
    """[i, j]: largest share of the run that fits the device's memory with `kept` micro-batches between forward and
    backward; a whole micro-batch at most, 0 where not even the weights fit."""
    batch = costs.problem.micro_batch_samples
    room = -costs.idle_missing(device)
    per_sample = kept * costs.activation_bytes()
    many = np.where(per_sample > 0, room // np.maximum(per_sample, 1), batch)
    return np.asarray(np.clip(np.where(room < 0, 0, many), 0, batch), dtype=np.int64)


class GroupCosts:
    """Costs of runs on groups of devices, with each matrix computed once."""

    def __init__(self, costs: RunCosts) -> None:
        self.costs = costs
        self.batch = costs.problem.micro_batch_samples
        self._seconds: dict[tuple[Group, int], Matrix] = {}
        self._missing: dict[tuple[Group, int], Matrix] = {}

    def seconds(self, group: Group, kept: int) -> Matrix:
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

    def missing(self, group: Group, kept: int) -> Matrix:
        """[i, j]: bytes that the worst member lacks with the allocation that minimises this; 0 where all fit."""
        key = (group, kept)
        if key not in self._missing:
            if len(group) == 1:
                short = np.maximum(self.costs.missing(group[0], kept * self.batch), 0.0)
                self._missing[key] = np.where(self.costs.forwards, short, np.inf)
            else:
                self._missing[key] = self._each_run(lambda i, j: max(0.0, *self._needs(group, kept, i, j)[1]))
        return self._missing[key]

    def neediest(self, group: Group, kept: int, i: int, j: int) -> tuple[str, int, float]:
        """(device, samples, missing bytes) of the worst member behind `missing`."""
        dealt, missing = self._needs(group, kept, i, j)
        worst = max(range(len(group)), key=lambda d: missing[d])
        return group[worst], dealt[worst], missing[worst]

    def dealt(self, group: Group, kept: int, i: int, j: int) -> list[int] | None:
        """Samples of each member for run (i, j), by measured speed within memory; None where they do not fit."""
        if len(group) == 1:
            return [self.batch]
        most = [int(max_samples(self.costs, device, kept)[i, j]) for device in group]
        times = [self._running(device) for device in group]
        return allocate([(total[:, j] - total[:, i]).tolist() for total in times], most, self.batch)

    def _slowest(self, group: Group, kept: int) -> Matrix:
        """Allocate samples for all runs at once, one by one as `allocate` does where times grow with samples; the few
        runs where a measured time falls with more samples are allocated one after another."""
        count = self.costs.blocks + 1
        most = np.stack([max_samples(self.costs, device, kept) for device in group])
        times = [self._running(device) for device in group]
        dealt = np.ones((len(group), count, count), dtype=np.int64)
        rows, columns = np.indices((count, count))

        def seconds(d: int, samples: Integers) -> Matrix:
            table, y = times[d], np.minimum(samples, self.batch) - 1
            return np.asarray(table[y, columns] - table[y, rows])

        for _ in range(self.batch - len(group)):
            after = [np.where(dealt[d] < most[d], seconds(d, dealt[d] + 1), np.inf) for d in range(len(group))]
            dealt[np.argmin(after, axis=0), rows, columns] += 1
        slowest = np.max([seconds(d, dealt[d]) for d in range(len(group))], axis=0)
        fits = (most >= 1).all(axis=0) & (most.sum(axis=0) >= self.batch) & self.costs.forwards
        result = np.where(fits, slowest, np.inf)
        for i, j in np.argwhere(fits & ~_growing(times)):
            shares = self.dealt(group, kept, i, j)
            assert shares is not None, "it fits"
            result[i, j] = max(float(t[y - 1, j] - t[y - 1, i]) for t, y in zip(times, shares, strict=True))
        return result

    def _running(self, device: str) -> Matrix:
        """[samples - 1, edge]: forward plus backward seconds of all units before the edge."""
        return np.stack([self.costs.running_seconds(device, y) for y in range(1, self.batch + 1)])

    def _needs(self, group: Group, kept: int, i: int, j: int) -> tuple[list[int], list[float]]:
        per_sample = kept * float(self.costs.activation_bytes()[i, j])
        idle = [float(self.costs.idle_missing(device)[i, j]) for device in group]
        if len(group) == 1:
            return [self.batch], [idle[0] + self.batch * per_sample]
        tables = [[base + y * per_sample for y in range(1, self.batch + 1)] for base in idle]
        dealt = allocate(tables, [self.batch] * len(group), self.batch)
        assert dealt is not None, "a group is never larger than a micro-batch here"
        return dealt, [table[y - 1] for table, y in zip(tables, dealt, strict=True)]

    def _each_run(self, value: Callable[[int, int], float]) -> Matrix:
        count = self.costs.blocks + 1
        result = np.full((count, count), np.inf)
        for i in range(count):
            for j in range(i + 1, count):
                result[i, j] = value(i, j)
        return result


def _growing(times: list[Matrix]) -> NDArray[np.bool_]:
    """[i, j]: whether no device is faster with more samples."""
    grows = np.ones((times[0].shape[1],) * 2, dtype=bool)
    for total in times:
        for fewer, more in zip(total, total[1:], strict=False):
            step = more - fewer
            grows &= step[None, :] >= step[:, None]
    return grows
