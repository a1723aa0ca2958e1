"""Seconds that no plan of a case can beat, whatever its stages, groups and shares; memory is not counted."""

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from fleetune.solving.hpp.case import Case, Floats

MOST_RUNS = 4096
"""Of layers, that the linear program tells apart: 20,000 layers on 3 devices take it 2 s, a million a quarter of an
hour."""


def lower_bound_s(case: Case) -> float:
    """The least of what one device needs for everything and of what several need at least.

    Several devices need at least

    1. total work over total speed, each layer where it is done best (`work_s`), and after it, where all share one
       stage, an all-reduce over the best link; or, where there are stages, the traffic of the cheapest cut over as
       many of the fastest ports as half of the devices have;
    2. the way of one micro-batch through all layers there and back, each at its fastest.

    A nanosecond per task is taken off: the simulation rounds.
    """
    rounding_s = 2e-9 * case.micro_batches + 1e-9 * case.layers
    alone_s = case.micro_batches * float(np.min(case.forward_s[:, -1, -1] + case.backward_s[:, -1, -1]))
    if case.devices == 1 or case.samples < 2 and case.layers < 2:
        return max(0.0, alone_s - rounding_s)
    work, links = work_s(case), ~np.eye(case.devices, dtype=bool)
    fastest = float(np.max(case.bandwidth[links]))
    together_s = work + float(case.trainable_bytes[-1]) / fastest + 2 * float(np.min(case.latency_s[links]))
    staged_s = np.inf
    if case.layers > 1:
        crossing = np.maximum(case.output_bytes[1:-1], case.gradient_bytes[1:-1])
        ports = case.devices // 2
        traffic_s = case.micro_batches * case.samples * float(np.min(crossing)) / (ports * fastest)
        staged_s = max(work, traffic_s)
    several_s = max(min(together_s, staged_s), _one_way_s(case))
    return max(0.0, min(alone_s, several_s) - rounding_s)


def work_s(case: Case) -> float:
    """Total work over total speed as a linear program: dealt like a fluid, layer by layer, to devices that take the
    least seconds per sample they can. The dual prices make a bound that holds however exact the solver is."""
    rates = np.diff(case.least_s, axis=1)
    total = case.micro_batches * case.samples
    prices = _prices(_joined(rates))
    return total * float(np.sum(np.min(prices[:, None] * rates, axis=0)))


def _joined(rates: Floats) -> Floats:
    """Runs of layers in place of layers where there are many: any prices make a bound, and these are good ones."""
    starts = np.unique(np.arange(MOST_RUNS) * rates.shape[1] // MOST_RUNS)
    return np.asarray(np.add.reduceat(rates, starts, axis=1))


def _prices(rates: Floats) -> Floats:
    """[device] at least 0, sum 1: how much a second of each device is worth."""
    devices, layers = rates.shape
    scale = float(np.max(rates))
    if scale == 0 or devices == 1:
        return np.full(devices, 1.0 / devices)
    cells = np.arange(devices * layers)
    loads = coo_array((rates.ravel() / scale, (cells // layers, cells)), shape=(devices, cells.size + 1)).tolil()
    loads[:, -1] = -1.0
    dealt = coo_array((np.ones(cells.size), (cells % layers, cells)), shape=(layers, cells.size + 1))
    solved = linprog(
        np.concatenate([np.zeros(cells.size), [1.0]]),
        A_ub=loads.tocsr(),
        b_ub=np.zeros(devices),
        A_eq=dealt.tocsr(),
        b_eq=np.ones(layers),
        method="highs",
    )
    prices = np.maximum(-solved.ineqlin.marginals, 0.0) if solved.status == 0 else 1.0 / np.maximum(rates.sum(1), 1e-15)
    total = float(np.sum(prices))
    return np.asarray(prices / total) if total > 0 else np.full(devices, 1.0 / devices)


def _one_way_s(case: Case) -> float:
    """One micro-batch forward and backward through all layers, each on any device at any share."""
    least = [np.min(np.diff(table[:, 1:, :], axis=2), axis=(0, 1)).sum() for table in (case.forward_s, case.backward_s)]
    return float(sum(least))
