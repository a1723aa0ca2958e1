"""dual-ascent: the paper's joint allocation of blocks and bandwidth (JBBA, P2-P5) by ascent of the Lagrangian dual.

Source: Wu, H., Chen, X., Huang, K.: Resource Management for Low-latency Cooperative Fine-tuning of Foundation Models at
the Network Edge, 2024 (LoLa-DEFT): Section V, Algorithm 3, Lemma 1, eq. (14)-(18). Each iteration minimises the
Lagrangian in three separate parts (T; blocks, by CRUNCH and then the Hungarian method on what CRUNCH leaves;
participating devices and their bandwidth, in closed form) and moves the multipliers along the violation of the
constraints.

Differences: eq. (16) prints S/B_k for S/(B_k r_k). The paper leaves the start and the end open: here CRUNCH's
allocation, and a fixed number of iterations with steps that shrink by their square root. The three parts agree only in
the limit, if at all, and their T is 0 or T_max; so the result is the best allocation of blocks, the start included,
with the best division of the band. Blocks chosen from what CRUNCH leaves need not minimise the Lagrangian: its value,
for the trace, uses the whole table.

Times are relative to the start's latency, which is T_max, and bandwidths to the band: then one step size suits all
problems, and violations are clipped at 1.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fleetune.arrays import Floats
from fleetune.errors import Refused
from fleetune.solving.lola_deft.allocation import (
    bottleneck_allocation,
    min_cost_assignment,
    min_latency_s,
    with_best_bandwidth,
)
from fleetune.solving.lola_deft.instance import Allocation, Instance, Ints
from fleetune.solving.lola_deft.problem import Iteration

ITERATIONS = 200
FIRST_STEP = 0.05
"""Step size of the first iteration."""
ROUNDING = 1 + 1e-9
"""Relative slack of a latency, which keeps the known allocation in the table."""
MIN_MULTIPLIER = 1e-6
"""Least multiplier of latency and of the band: at 0 the closed forms give no bandwidth."""


def plan(instance: Instance) -> Allocation:
    """Return the best allocation found; raises Refused if bandwidth is equal."""
    if instance.problem.bandwidth == "equal":
        raise Refused(
            'dual-ascent: it divides the band, and bandwidth is "equal"; use crunch, or give a problem whose bandwidth '
            'is "joint"'
        )
    best = bottleneck_allocation(instance.equal_part_s).devices
    unit_s = best_s = min_latency_s(instance, best)
    trace = []
    for dual, devices in Ascent(instance, unit_s).iterations():
        primal_s = min_latency_s(instance, devices)
        if primal_s < best_s:
            best, best_s = devices, primal_s
        trace.append(Iteration(dual_s=dual * unit_s, primal_s=primal_s, best_s=best_s))
    return with_best_bandwidth(instance, best)._replace(trace=tuple(trace))


class Multipliers(NamedTuple):
    """Dual variables."""

    latency: Floats
    """[device], lambda of (C4.1)."""
    band: float
    """mu of (C4.2)."""
    involved: Floats
    """[device], sigma of (C4.3)."""


class BandwidthMinimum(NamedTuple):
    """Minimiser of the bandwidth part of the Lagrangian."""

    chosen: Ints
    """[block], devices that participate."""
    bandwidth: Floats
    """[block], shares of the band by eq. (17)."""
    cost: float
    """Value of this part, eq. (18)."""


class LagrangianMinimum(NamedTuple):
    """Minimiser of the Lagrangian, part by part; latency relative to the known plan's, bandwidth to the band."""

    latency: float
    """T of eq. (15)."""
    devices: Ints
    """[block], of the assignment."""
    chosen: Ints
    """[block], devices that participate."""
    bandwidth: Floats
    """[block], of the chosen devices."""


class Ascent:
    """Ascent on one problem; times relative to `unit_s`, the latency of a known plan, bandwidth relative to the
    band."""

    def __init__(self, instance: Instance, unit_s: float) -> None:
        self.blocks, self.devices = instance.blocks, instance.devices
        usable = instance.fits & (instance.compute_s + instance.upload_s <= unit_s * ROUNDING)
        self.compute: Floats = np.where(usable, instance.compute_s / (unit_s or 1.0), np.inf)
        """[block, device]; infinite for pairs that no plan as good as the known one contains."""
        self.upload: Floats = np.minimum(instance.upload_s / (unit_s or 1.0), 1.0)
        """[device], over the whole band."""

    def iterations(self) -> Iterator[tuple[float, Ints]]:
        """Yield the value of the dual function and the devices [block]."""
        at = self._start()
        for number in range(ITERATIONS):
            latency = 0.0 if np.sum(at.latency) < 1 else 1.0
            table = np.where(np.isfinite(self.compute), at.latency * self.compute - at.involved, np.inf)
            devices = self._blocks(table)
            cheapest = min_cost_assignment(table)
            band = self._bandwidth(at)
            assert cheapest is not None
            dual = (1 - np.sum(at.latency)) * latency + self._total(table, cheapest) + band.cost
            yield float(dual), devices
            found = LagrangianMinimum(latency, devices, band.chosen, band.bandwidth)
            at = self._step(at, FIRST_STEP / np.sqrt(number + 1), found)

    def _start(self) -> Multipliers:
        """Return multipliers that weigh all devices equally and use up the band."""
        latency = np.full(self.devices, 1.0 / self.blocks)
        nearest = np.sort(np.sqrt(latency * self.upload))[: self.blocks]
        return Multipliers(latency, max(MIN_MULTIPLIER, float(np.sum(nearest)) ** 2), np.zeros(self.devices))

    def _blocks(self, table: Floats) -> Ints:
        """Return the least-cost devices among the pairs that CRUNCH leaves, Section V-C."""
        left = np.where(table <= bottleneck_allocation(table).threshold, table, np.inf)
        devices = min_cost_assignment(left)
        assert devices is not None
        return devices

    def _bandwidth(self, at: Multipliers) -> BandwidthMinimum:
        worth = 2 * np.sqrt(at.latency * self.upload * at.band) + at.involved
        chosen = np.argsort(worth, kind="stable")[: self.blocks]
        parts = np.sqrt(at.latency * self.upload / at.band)[chosen]
        return BandwidthMinimum(chosen, parts, float(np.sum(worth[chosen])) - at.band)

    def _step(self, at: Multipliers, step: float, found: LagrangianMinimum) -> Multipliers:
        """Return the multipliers after a step along the violated constraints, eq. (16)."""
        late = np.full(self.devices, -found.latency)
        late[found.devices] += self.compute[np.arange(self.blocks), found.devices]
        sending = found.bandwidth > 0
        sent = np.divide(self.upload[found.chosen], found.bandwidth, out=np.zeros(self.blocks), where=sending)
        late[found.chosen] += np.minimum(sent, 1.0)
        involved = np.zeros(self.devices)
        involved[found.chosen] += 1
        involved[found.devices] -= 1
        return Multipliers(
            np.maximum(MIN_MULTIPLIER, at.latency + step * late / self.blocks),
            max(MIN_MULTIPLIER, at.band + step * float(np.clip(np.sum(found.bandwidth) - 1, -1, 1))),
            at.involved + step * involved / self.blocks,
        )

    def _total(self, table: Floats, devices: Ints) -> float:
        return float(np.sum(table[np.arange(self.blocks), devices]))
