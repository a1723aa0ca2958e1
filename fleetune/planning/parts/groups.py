"""What a run of units costs on a group of devices that share its samples."""

from collections.abc import Callable

import numpy as np

from fleetune.planning.parts.allocation import allocate
from fleetune.planning.parts.costs import Costs, Matrix

Group = tuple[str, ...]


def most_samples(costs: Costs, device: str, kept: int, i: int, j: int) -> int:
    """The largest share of run (i, j) that fits the device's memory with `kept` micro-batches between forward and
    backward; capped at a whole micro-batch, 0 or less where not even the weights and a sample fit."""
    batch = costs.problem.micro_batch_samples
    room = -float(costs.idle_missing(device)[i, j])
    per_sample = kept * costs.activation_bytes(i, j)
    if room < 0:
        return 0
    return batch if per_sample == 0 else min(batch, int(room // per_sample))


class Groups:
    """Costs of runs on groups; every answer is computed once."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.batch = costs.problem.micro_batch_samples
        self._seconds: dict[tuple[Group, int], Matrix] = {}
        self._missing: dict[tuple[Group, int], Matrix] = {}

    def seconds(self, group: Group, kept: int) -> Matrix:
        """[i, j]: the slowest member's forward and backward seconds; infinite where memory is short."""
        key = (group, kept)
        if key not in self._seconds:
            if len(group) == 1:
                fits = self.costs.missing(group[0], kept * self.batch) <= 0
                self._seconds[key] = np.where(fits, self.costs.seconds(group[0], self.batch), np.inf)
            else:
                self._seconds[key] = self._each_run(lambda i, j: self._slowest(group, kept, i, j))
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
        most = [most_samples(self.costs, device, kept, i, j) for device in group]
        return allocate([self._times(device, i, j) for device in group], most, self.batch)

    def _slowest(self, group: Group, kept: int, i: int, j: int) -> float:
        dealt = self.dealt(group, kept, i, j)
        if dealt is None:
            return np.inf
        return max(self._times(device, i, j)[y - 1] for device, y in zip(group, dealt, strict=True))

    def _times(self, device: str, i: int, j: int) -> list[float]:
        rows = (self.costs.running_seconds(device, y) for y in range(1, self.batch + 1))
        return [float(row[j] - row[i]) for row in rows]

    def _needs(self, group: Group, kept: int, i: int, j: int) -> tuple[list[int], list[float]]:
        per_sample = kept * self.costs.activation_bytes(i, j)
        idle = [float(self.costs.idle_missing(device)[i, j]) for device in group]
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
