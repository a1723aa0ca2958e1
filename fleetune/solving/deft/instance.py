"""A problem as arrays, and the result of a method."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.solving.deft.infeasibility import require_allocation
from fleetune.solving.deft.problem import Iteration, Problem
from fleetune.solving.validation import Floats

Ints = NDArray[np.intp]


class Allocation(NamedTuple):
    """Result of a method."""

    devices: Ints
    """[block]"""
    bandwidth_hz: list[float]
    """[block]"""
    bound_s: float | None = None
    """No plan has a shorter latency; None: the method proves no bound."""
    solved_by: str | None = None
    trace: tuple[Iteration, ...] | None = None


class Instance:
    """A problem as arrays [block, device]. Construction raises Infeasible if no allocation fits memory."""

    def __init__(self, problem: Problem) -> None:
        require_allocation(problem)
        self.problem = problem
        self.compute_s: Floats = np.ascontiguousarray(np.array(problem.compute_s, np.float64).T)
        self.blocks, self.devices = self.compute_s.shape
        self.efficiency: Floats = np.array(problem.spectral_efficiency, np.float64)
        self.upload_s: Floats = problem.block_bits / (problem.bandwidth_hz * self.efficiency)
        """[device], seconds to send a block over the whole band."""
        self.fits = np.array(problem.block_memory_bytes)[:, None] <= np.array(problem.memory_bytes)
        self.equal_part_hz = rounded_into_band(
            [problem.bandwidth_hz / self.blocks] * self.blocks, problem.bandwidth_hz
        )[0]
        """Bandwidth of each block if all parts are equal."""
        sent_s = problem.block_bits / (self.equal_part_hz * self.efficiency)
        self.equal_part_s: Floats = np.where(self.fits, self.compute_s + sent_s, np.inf)
        """[block, device], latency with an equal part of the band; infinite where memory is short."""

    def times_on(self, devices: Ints) -> tuple[Floats, Floats]:
        """Return [block] the seconds to compute, and to send over the whole band, on its device."""
        return self.compute_s[np.arange(self.blocks), devices], self.upload_s[devices]

    def with_equal_bandwidth(
        self, devices: Ints, bound_s: float | None = None, solved_by: str | None = None
    ) -> Allocation:
        """Return these devices with equal parts of the band."""
        return Allocation(devices, [self.equal_part_hz] * self.blocks, bound_s, solved_by)

    def latency_s(self, allocation: Allocation) -> float:
        """Return the latency of the slowest pair, computed from the plan's own numbers."""
        compute_s, _ = self.times_on(allocation.devices)
        rates = np.array(allocation.bandwidth_hz) * self.efficiency[allocation.devices]
        return float(np.max(compute_s + self.problem.block_bits / rates))


def rounded_into_band(bandwidth_hz: list[float], band_hz: float) -> list[float]:
    """Round the parts down by as few units in the last place as needed for their sum to stay within the band.

    The sum is at most the band both when added in order in floats and when rounded once.
    """
    kept, bits = bandwidth_hz, 1
    while sum(kept) > band_hz or math.fsum(kept) > band_hz:
        kept = [hz * (1 - bits * 2.0**-53) for hz in bandwidth_hz]
        bits *= 2
    return kept
