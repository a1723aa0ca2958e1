"""A problem as arrays, an allocation as the methods return it, and messages where memory is short."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.arrays import Floats
from fleetune.errors import Infeasible
from fleetune.formatting import whole_size
from fleetune.solving.lola_deft.problem import Iteration, Problem
from fleetune.solving.validation import plural

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


SHOWN = 8
"""Names in a list."""


def require_allocation(problem: Problem) -> None:
    """Raise Infeasible if there are fewer devices than blocks, or too few with enough memory for some blocks.

    A device that can hold a block can hold every smaller one. So by Hall's theorem it suffices to test the k largest
    blocks for each k: they need k devices with the memory of the smallest of them.
    """
    memory, needs = np.array(problem.memory_bytes), np.array(problem.block_memory_bytes)
    if len(memory) < len(needs):
        raise Infeasible(
            f"{plural(len(memory), 'device')} for {plural(len(needs), 'block')}: each block needs a device of its "
            f"own, and {_listed('block', list(range(len(memory), len(needs))))} would have none; add devices or make "
            f"larger blocks, fewer of them"
        )
    order = np.argsort(-needs, kind="stable")
    largest = np.sort(memory)[::-1][: len(needs)]
    short = np.flatnonzero(needs[order] > largest)
    if short.size:
        raise Infeasible(_too_little(problem, sorted(order[: short[0] + 1].tolist()), float(needs[order[short[0]]])))


def memory_violation(problem: Problem, devices: Sequence[int]) -> str:
    """Name the block that exceeds its device's memory the most; empty if all fit."""
    needs, memory = problem.block_memory_bytes, problem.memory_bytes
    lacks = [need - memory[device] for need, device in zip(needs, devices, strict=True)]
    block = max(range(len(lacks)), key=lacks.__getitem__)
    if lacks[block] <= 0:
        return ""
    device = devices[block]
    return (
        f"device {device} lacks {whole_size(lacks[block])} for block {block}, which needs {whole_size(needs[block])}; "
        f"it has {whole_size(memory[device])}"
    )


def _too_little(problem: Problem, blocks: list[int], need: float) -> str:
    """Describe blocks that need `need` bytes each, of which one device too few has that much."""
    enough = [device for device, has in enumerate(problem.memory_bytes) if has >= need]
    others = [device for device in range(len(problem.memory_bytes)) if device not in set(enough)]
    following = max(others, key=problem.memory_bytes.__getitem__)
    has = problem.memory_bytes[following]
    who = f"only {_listed('device', enough)} {'has' if len(enough) == 1 else 'have'}" if enough else "no device has"
    each = f"block {blocks[0]} needs" if len(blocks) == 1 else f"{_listed('block', blocks)} need at least"
    return (
        f"{each} {whole_size(need)}{'' if len(blocks) == 1 else ' each'}, and {who} that much; device {following} "
        f"comes next with {whole_size(has)} and lacks {whole_size(need - has)}: give a device more memory, add one, or "
        "make smaller blocks"
    )


def _listed(noun: str, indices: list[int]) -> str:
    """Format a list: `device 2`, `devices 2, 5`, at most SHOWN."""
    shown = ", ".join(map(str, indices[:SHOWN]))
    more = f" and {len(indices) - SHOWN} more" if len(indices) > SHOWN else ""
    return f"{noun}{'' if len(indices) == 1 else 's'} {shown}{more}"
