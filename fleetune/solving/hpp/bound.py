"""Lower bound of the round of any plan of an instance; memory is not counted.

It counts links and the all-reduce, which plans of kind "hpp" need; `fleetune.planning.plan_result` has the bound that
holds for plans of every strategy.
"""

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from fleetune.arrays import Floats
from fleetune.solving.hpp.instance import Instance

MAX_LP_RUNS = 4096
"""Largest number of runs of layers in the linear program; 20,000 layers on 3 devices take 2 s, a million 15 minutes."""
MAX_LP_CELLS = 16_384
"""Limit of runs x devices: 3000 layers on 40 devices took 6 s, and a seventh of them gives a bound 0.05 % lower."""


def lower_bound_s(instance: Instance) -> float:
    """Seconds: the lesser of the time of the best single device and of a bound for several devices.

    Several devices need at least

    1. total work over total speed (`work_s`), plus an all-reduce over the best link where all share one stage; or,
       where there are several stages, the traffic of the cheapest cut over half as many of the fastest ports as there
       are devices;
    2. one micro-batch forward and backward through all layers, each on its fastest device.

    A nanosecond per task is subtracted, since the simulation rounds.
    """
    rounding_s = 2e-9 * instance.micro_batches + 1e-9 * instance.layers
    alone_s = instance.micro_batches * float(np.min(instance.forward_s[:, -1, -1] + instance.backward_s[:, -1, -1]))
    if instance.devices == 1 or instance.samples < 2 and instance.layers < 2:
        return max(0.0, alone_s - rounding_s)
    work, links = work_s(instance), ~np.eye(instance.devices, dtype=bool)
    fastest = float(np.max(instance.bandwidth[links]))
    together_s = work + float(instance.trainable_bytes[-1]) / fastest + 2 * float(np.min(instance.latency_s[links]))
    staged_s = np.inf
    if instance.layers > 1:
        crossing = np.maximum(instance.output_bytes[1:-1], instance.gradient_bytes[1:-1])
        ports = instance.devices // 2
        traffic_s = instance.micro_batches * instance.samples * float(np.min(crossing)) / (ports * fastest)
        staged_s = max(work, traffic_s)
    several_s = max(min(together_s, staged_s), _one_way_s(instance))
    return max(0.0, min(alone_s, several_s) - rounding_s)


def work_s(instance: Instance) -> float:
    """Seconds of the total work over the total speed: a linear program that divides every layer like a fluid among
    devices at their least seconds per sample. Its dual prices give a bound whatever the solver's accuracy."""
    rates = np.diff(instance.best_s, axis=1)
    total = instance.micro_batches * instance.samples
    prices = _prices(joined_runs(rates))
    return total * priced_work_s(prices, rates)


def priced_work_s(prices: Floats, rates: Floats) -> float:
    """Lower bound of a device's load per sample by weak duality: Σ_u min_d prices[d] · rates[d, u].

    prices: [device], at least 0, sum 1; rates: least seconds per sample, [device, layer].
    """
    return float(np.sum(np.min(prices[:, None] * rates, axis=0)))


def joined_runs(rates: Floats) -> Floats:
    """Join layers into at most MAX_LP_RUNS runs of MAX_LP_CELLS cells: prices of runs are good ones, and any prices
    give a bound."""
    runs = max(1, min(MAX_LP_RUNS, MAX_LP_CELLS // len(rates)))
    starts = np.unique(np.arange(runs) * rates.shape[1] // runs)
    return np.asarray(np.add.reduceat(rates, starts, axis=1))


def _prices(rates: Floats) -> Floats:
    """[device]: dual price of a second of each device; at least 0, sum 1."""
    devices, layers = rates.shape
    scale = float(np.max(rates))
    if scale == 0 or devices == 1:
        return np.full(devices, 1.0 / devices)
    cells = np.arange(devices * layers)
    loads = coo_array((rates.ravel() / scale, (cells // layers, cells)), shape=(devices, cells.size + 1)).tolil()
    loads[:, -1] = -1.0
    assigned = coo_array((np.ones(cells.size), (cells % layers, cells)), shape=(layers, cells.size + 1))
    solved = linprog(
        np.concatenate([np.zeros(cells.size), [1.0]]),
        A_ub=loads.tocsr(),
        b_ub=np.zeros(devices),
        A_eq=assigned.tocsr(),
        b_eq=np.ones(layers),
        method="highs",
    )
    prices = np.maximum(-solved.ineqlin.marginals, 0.0) if solved.status == 0 else 1.0 / np.maximum(rates.sum(1), 1e-15)
    total = float(np.sum(prices))
    return np.asarray(prices / total) if total > 0 else np.full(devices, 1.0 / devices)


def _one_way_s(instance: Instance) -> float:
    """Seconds of one micro-batch forward and backward through all layers, each on its fastest device and share."""
    least = [
        np.min(np.diff(table[:, 1:, :], axis=2), axis=(0, 1)).sum()
        for table in (instance.forward_s, instance.backward_s)
    ]
    return float(sum(least))
