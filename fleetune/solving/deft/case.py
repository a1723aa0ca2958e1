"""A problem as arrays, and what every method hands back."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.solving.deft.problem import Problem
from fleetune.solving.deft.shortage import prove_possible
from fleetune.solving.deft.solution import Iteration
from fleetune.solving.proofs import Floats

Ints = NDArray[np.intp]


class Draft(NamedTuple):
    """A method's answer."""

    devices: Ints
    """Of each block."""
    bandwidth_hz: list[float]
    """Of each block."""
    low_s: float | None = None
    """No plan has a shorter latency; None: the method proves nothing."""
    solved_by: str | None = None
    trace: tuple[Iteration, ...] | None = None


class Case:
    """Tables are [block, device]; Infeasible where no allocation fits memory."""

    def __init__(self, problem: Problem) -> None:
        prove_possible(problem)
        self.problem = problem
        self.compute_s: Floats = np.ascontiguousarray(np.array(problem.compute_s, np.float64).T)
        self.blocks, self.devices = self.compute_s.shape
        self.efficiency: Floats = np.array(problem.spectral_efficiency, np.float64)
        self.upload_s: Floats = problem.block_bits / (problem.bandwidth_hz * self.efficiency)
        """[device]: to send a block over the whole band."""
        self.fits = np.array(problem.block_memory_bytes)[:, None] <= np.array(problem.memory_bytes)
        self.even_hz = trimmed([problem.bandwidth_hz / self.blocks] * self.blocks, problem.bandwidth_hz)[0]
        """Of each block where all parts are equal."""
        sent_s = problem.block_bits / (self.even_hz * self.efficiency)
        self.even_s: Floats = np.where(self.fits, self.compute_s + sent_s, np.inf)
        """Latency of each pair with an equal part of the band; infinite where memory lacks."""

    def of(self, devices: Ints) -> tuple[Floats, Floats]:
        """Seconds to compute, and to send over the whole band, of each block on its device."""
        return self.compute_s[np.arange(self.blocks), devices], self.upload_s[devices]

    def evenly(self, devices: Ints, low_s: float | None = None, solved_by: str | None = None) -> Draft:
        """These devices with equal parts of the band."""
        return Draft(devices, [self.even_hz] * self.blocks, low_s, solved_by)

    def latency_s(self, draft: Draft) -> float:
        """Of the slowest pair, by the contract's formula on the numbers that are printed."""
        compute_s, _ = self.of(draft.devices)
        rates = np.array(draft.bandwidth_hz) * self.efficiency[draft.devices]
        return float(np.max(compute_s + self.problem.block_bits / rates))


def trimmed(bandwidth_hz: list[float], band_hz: float) -> list[float]:
    """The parts with their last bits off, as far as needed for a sum within the band.

    The sum is at most the band both when added one by one in floats and when rounded once.
    """
    kept, bits = bandwidth_hz, 1
    while sum(kept) > band_hz or math.fsum(kept) > band_hz:
        kept = [hz * (1 - bits * 2.0**-53) for hz in bandwidth_hz]
        bits *= 2
    return kept
