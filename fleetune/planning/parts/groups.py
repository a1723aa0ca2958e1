"""What a run of units costs on a group of devices that share its samples."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fleetune.planning.parts.run_costs import Integers, Matrix, RunCosts
from fleetune.solving.hpp.sample_allocation import allocate

Group = tuple[str, ...]


def max_samples(costs: RunCosts, device: str, kept: int) -> Integers:
    """[i, j]: the largest share of the run that fits the device's memory with `kept` micro-batches between forward
    and backward; a whole micro-batch at most, 0 where not even the weights fit."""
    batch = costs.problem.micro_batch_samples
    room = -costs.idle_missing(device)
    per_sample = kept * costs.activation_bytes()
    many = np.where(per_sample > 0, room // np.maximum(per_sample, 1), batch)
    return np.asarray(np.clip(np.where(room < 0, 0, many), 0, batch), dtype=np.int64)


class GroupCosts:
    """Costs of runs on groups; every answer is computed once."""

    def __init__(self, costs: RunCosts) -> None:
        self.costs = costs
        self.batch = costs.problem.micro_batch_samples
        self._seconds: dict[tuple[Group, int], Matrix] = {}
        self._missing: dict[tuple[Group, int], Matrix] = {}

    def seconds(self, group: Group, kept: int) -> Matrix:
        """[i, j]: the slowest member's forward and backward seconds; infinite where memory is short. Laid out by
        columns, the way `cuts` reads it."""
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
        """[i, j]: bytes that the neediest member lacks, with samples dealt so that this is least; 0 where all fits."""
        key = (group, kept)
        if key not in self._missing:
            if len(group) == 1:
                short = np.maximum(self.costs.missing(group[0], kept * self.batch), 0.0)
                self._missing[key] = np.where(self.costs.forwards, short, np.inf)
            else:
                self._missing[key] = self._each_run(lambda i, j: max(0.0, *self._needs(group, kept, i, j)[1]))
        return self._missing[key]

    def neediest(self, group: Group, kept: int, i: int, j: int) -> tuple[str, int, float]:
        """(device, samples, missing bytes) behind `missing`."""
        dealt, missing = self._needs(group, kept, i, j)
        worst = max(range(len(group)), key=lambda d: missing[d])
        return group[worst], dealt[worst], missing[worst]

    def dealt(self, group: Group, kept: int, i: int, j: int) -> list[int] | None:
        """Samples of each member of the group for run (i, j), by measured speed within memory."""
        if len(group) == 1:
            return [self.batch]
        most = [int(max_samples(self.costs, device, kept)[i, j]) for device in group]
        times = [self._running(device) for device in group]
        return allocate([(total[:, j] - total[:, i]).tolist() for total in times], most, self.batch)

    def _slowest(self, group: Group, kept: int) -> Matrix:
        """Deal samples for all runs at once, one by one to whom it hurts least, as `allocate` does where times grow;
        the few runs where a measured time falls with more samples are dealt one after another."""
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
        """[samples - 1, edge]: forward and backward seconds of everything before the edge."""
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
