"""What a run of neighbouring units costs on a device: seconds by samples, bytes by kept samples.

Units that may not be cut apart form a block; a run is a pair of edges (i, j), the blocks i..j-1. Everything is told
for all runs at once, as a matrix [i, j] (infinite or meaningless unless i < j).
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fleetune.clock import Clock
from fleetune.contracts.profile import Unit
from fleetune.planning.parts.layers import cut_places
from fleetune.planning.problem import Problem

Matrix = NDArray[np.float64]
Integers = NDArray[np.int64]


class RunCosts:
    """Costs of one problem; every answer is computed once."""

    def __init__(self, problem: Problem, edges: list[int] | None = None) -> None:
        self.problem = problem
        self.clock = Clock(problem.fleet, problem.profile)
        units = problem.profile.units
        self.edges = cut_places(units) if edges is None else edges
        """Positions in the list of units where a segment may begin or end."""
        self._seconds: dict[tuple[str, int], Matrix] = {}
        self._activations = self._running(unit.activation_bytes for unit in units)

    @property
    def blocks(self) -> int:
        """How many pieces the model can be cut into."""
        return len(self.edges) - 1

    def units(self, i: int, j: int) -> tuple[Unit, ...]:
        """The units of a run."""
        return self.problem.profile.units[self.edges[i] : self.edges[j]]

    def running_seconds(self, device: str, samples: int) -> Matrix:
        """[edge]: forward and backward seconds of everything before the edge."""
        key = (device, samples)
        if key not in self._seconds:
            forward, backward = self.clock.unit_times(device, samples)
            total = np.concatenate([[0.0], np.cumsum(np.asarray(forward) + np.asarray(backward))])
            self._seconds[key] = total[self.edges]
        return self._seconds[key]

    def seconds(self, device: str, samples: int) -> Matrix:
        """[i, j]: seconds of one micro-batch's forward and backward; infinite unless i < j."""
        total = self.running_seconds(device, samples)
        return np.where(self.forwards, total[None, :] - total[:, None], np.inf)

    def missing(self, device: str, kept_samples: int) -> Matrix:
        """[i, j]: bytes the device lacks to run it with that many samples kept; negative where there is room."""
        return self.idle_missing(device) + kept_samples * self.activation_bytes()

    def idle_missing(self, device: str) -> Matrix:
        """[i, j]: the same with nothing kept: runtime, weights and their state alone."""
        budget = self.problem.fleet.device(device).memory_bytes
        runtime = self.problem.profile.times_of(device).runtime_bytes
        return self._weights + float(runtime - budget)

    def activation_bytes(self) -> Matrix:
        """[i, j]: kept per sample between forward and backward."""
        return np.asarray(self._activations[None, :] - self._activations[:, None], dtype=np.float64)

    @cached_property
    def forwards(self) -> NDArray[np.bool_]:
        """[i, j]: whether i < j."""
        return np.triu(np.ones((self.blocks + 1, self.blocks + 1), dtype=bool), k=1)

    @cached_property
    def _weights(self) -> Matrix:
        units = self.problem.profile.units
        held = self._running(unit.param_bytes + unit.buffer_bytes for unit in units)
        trained = self._running(unit.trainable_bytes for unit in units)
        per_byte = 1 + self.problem.profile.optimizer_bytes_per_param_byte
        state = np.ceil((trained[None, :] - trained[:, None]) * per_byte)
        return np.asarray(held[None, :] - held[:, None] + state, dtype=np.float64)

    def _running(self, values: object) -> Integers:
        total = np.concatenate([[0], np.cumsum(np.fromiter(values, dtype=np.int64))])  # type: ignore[call-overload]
        return np.asarray(total[self.edges], dtype=np.int64)
