"""A problem as arrays, and what every method hands back."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.solving.deft.infeasibility import require_allocation
from fleetune.solving.deft.problem import Iteration, Problem
from fleetune.solving.validation import Floats

Ints = NDArray[np.intp]


class Allocation(NamedTuple):
    """A method's answer."""

    devices: Ints
    """Of each block."""
    bandwidth_hz: list[float]
    """Of each block."""
    bound_s: float | None = None
    """No plan has a shorter latency; None: the method proves nothing."""
    solved_by: str | None = None
    trace: tuple[Iteration, ...] | None = None


class Instance:
    """Tables are [block, device]; Infeasible where no allocation fits memory."""

    def __init__(self, problem: Problem) -> None:
        require_allocation(problem)
        self.problem = problem
        self.compute_s: Floats = np.ascontiguousarray(np.array(problem.compute_s, np.float64).T)
        self.blocks, self.devices = self.compute_s.shape
        self.efficiency: Floats = np.array(problem.spectral_efficiency, np.float64)
        self.upload_s: Floats = problem.block_bits / (problem.bandwidth_hz * self.efficiency)
        """[device]: to send a block over the whole band."""
        self.fits = np.array(problem.block_memory_bytes)[:, None] <= np.array(problem.memory_bytes)
        self.equal_part_hz = rounded_into_band(
            [problem.bandwidth_hz / self.blocks] * self.blocks, problem.bandwidth_hz
        )[0]
        """Of each block where all parts are equal."""
        sent_s = problem.block_bits / (self.equal_part_hz * self.efficiency)
        self.equal_part_s: Floats = np.where(self.fits, self.compute_s + sent_s, np.inf)
        """Latency of each pair with an equal part of the band; infinite where memory lacks."""

    def times_on(self, devices: Ints) -> tuple[Floats, Floats]:
        """Seconds to compute, and to send over the whole band, of each block on its device."""
        return self.compute_s[np.arange(self.blocks), devices], self.upload_s[devices]

    def with_equal_bandwidth(
        self, devices: Ints, bound_s: float | None = None, solved_by: str | None = None
    ) -> Allocation:
        """These devices with equal parts of the band."""
        return Allocation(devices, [self.equal_part_hz] * self.blocks, bound_s, solved_by)

    def latency_s(self, allocation: Allocation) -> float:
        """Of the slowest pair, by the contract's formula on the numbers that are printed."""
        compute_s, _ = self.times_on(allocation.devices)
        rates = np.array(allocation.bandwidth_hz) * self.efficiency[allocation.devices]
        return float(np.max(compute_s + self.problem.block_bits / rates))


def rounded_into_band(bandwidth_hz: list[float], band_hz: float) -> list[float]:
    """The parts with their last bits off, as far as needed for a sum within the band.

    The sum is at most the band both when added one by one in floats and when rounded once.
    """
    kept, bits = bandwidth_hz, 1
    while sum(kept) > band_hz or math.fsum(kept) > band_hz:
        kept = [hz * (1 - bits * 2.0**-53) for hz in bandwidth_hz]
        bits *= 2
    return kept
