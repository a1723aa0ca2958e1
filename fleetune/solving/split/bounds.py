"""Lower bounds on the makespan of every plan, preemptive or not.

`quick_bound` combines path, volume and energetic bounds and is cheap enough for every method to report.
`branch_and_cut_bound` solves the energetic bound over integral assignments as a mixed-integer program: where clients
may be nearly anywhere, the fractional bound is weak by a few percent, and constraint solvers, which learn little from
sums, hardly improve it. Coefficients are scaled down to MAX_UNITS without loss of validity: integral parts of a sum fit
into the integral part of its limit.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fleetune.arrays import Bools, Floats
from fleetune.solving.limits import Deadline
from fleetune.solving.split.energetic import EnergeticBound
from fleetune.solving.split.instance import Instance
from fleetune.solving.split.schedule import Gap
from fleetune.solving.split.schedule_cache import masks_of

MAX_PAIRS = 5_000
"""Helper-client pairs up to which the linear programs cost no more than the heuristics that report their bound."""
NONE = 2**52
"""Larger than every time of a problem."""


def quick_bound(instance: Instance, deadline: Deadline | None = None) -> int:
    """Return the largest of path bound, volume bound and energetic bound over fractional assignments."""
    energetic = EnergeticBound(instance)
    return energetic_bound(energetic, makespan_limit(instance), MAX_PAIRS, deadline)


def energetic_bound(energetic: EnergeticBound, high: int, most_pairs: int, deadline: Deadline | None = None) -> int:
    """Return `quick_bound`, and keep the cuts it finds in `energetic`; high: the makespan of a plan.

    If time runs out, the bound is that of the steps that finished.
    """
    instance = energetic.instance
    low = min(high, max(energetic.path_bound(), volume_bound(instance)))
    return energetic.least_horizon(low, high, deadline) if instance.linked.size <= most_pairs else low


def volume_bound(instance: Instance) -> int:
    """Return the least total work, with each helper's first release and last tail, divided by the helpers in use.

    The helpers in use are unknown: the bound takes the best number of those with the smallest release and tail.
    """
    least = np.where(instance.linked, instance.forward + instance.backward, NONE).min(axis=0).sum()
    first = np.where(instance.linked, instance.release, NONE).min(axis=1)
    last = np.where(instance.linked, instance.tail, NONE).min(axis=1) + 2 * instance.switch_cost
    edges = np.sort((first + last)[instance.linked.any(axis=1)])
    if not instance.linked.any(axis=0).all():
        return NONE  # infeasible: a client has no helper
    used = np.arange(1, len(edges) + 1)
    return int(min(-(-(least + edges.cumsum()) // used)))


def makespan_limit(instance: Instance) -> int:
    """Return a makespan that no plan without needless idle time exceeds."""
    alone = instance.release.max() + instance.turnaround.max() + instance.tail.max() + 2 * instance.switch_cost.max()
    work = (instance.forward + instance.backward).max(axis=0).sum()
    return int(alone + work)


MAX_UNITS = 20_000
"""Horizon in units of a model."""
SLACK = 1e-2
"""Rounding slack in model units, above the solver's tolerance."""


class BranchAndCut(NamedTuple):
    """Result of branch and cut."""

    bound: int
    """No plan is shorter."""
    masks: list[int] | None
    """Clients of each helper in the best assignment found, or None; it meets the cuts, not always the horizon."""


def branch_and_cut_bound(energetic: EnergeticBound, gap: Gap, nodes: int, left_s: float = math.inf) -> BranchAndCut:
    """Return a bound on plans shorter than `gap.makespan`, after at most `nodes` nodes of branch and cut."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    instance, horizon = energetic.instance, gap.makespan - 1
    opened = energetic.open_at(horizon)
    if not opened.any(axis=0).all():
        return BranchAndCut(gap.makespan, None)
    unit = max(1, horizon // MAX_UNITS)
    rows = _inequalities(energetic, gap.lower_bound, opened, unit)
    count = int(opened.sum())
    options: dict[str, float] = {"node_limit": nodes}
    if math.isfinite(left_s):
        options["time_limit"] = max(0.01, left_s)
    solved = milp(
        np.append(np.zeros(count), 1.0),
        integrality=np.ones(count + 1),
        bounds=Bounds(np.zeros(count + 1), np.append(np.ones(count), horizon // unit)),
        constraints=LinearConstraint(rows.matrix, rows.least, rows.most),
        options=options,
    )
    if solved.status == 2:
        return BranchAndCut(gap.makespan, None)
    bound = gap.lower_bound
    if solved.mip_dual_bound is not None and math.isfinite(solved.mip_dual_bound):
        bound = max(bound, unit * math.ceil(solved.mip_dual_bound - SLACK))
    if solved.x is None:
        return BranchAndCut(bound, None)
    share = np.zeros(opened.shape)
    share[opened] = solved.x[:-1]
    energetic.separate(np.round(share), horizon)
    return BranchAndCut(bound, masks_of(instance, np.argmax(share, axis=0).tolist()))


class _Inequalities(NamedTuple):
    """least <= matrix · x <= most, where x holds the open pairs and, last, the horizon in units."""

    matrix: Any
    """Sparse, in rows."""
    least: Floats
    most: Floats


def _inequalities(energetic: EnergeticBound, low: int, opened: Bools, unit: int) -> _Inequalities:
    """Return the cuts, the helpers' memories, and one helper for each client."""
    from scipy.sparse import csr_matrix

    instance, count = energetic.instance, int(opened.sum())
    place = np.cumsum(opened.ravel()).reshape(opened.shape) - 1
    columns, values, starts, least, most = [], [], [0], [], []

    def add(places: Any, weights: Any, sides: tuple[float, float]) -> None:
        columns.append(places)
        values.append(weights)
        starts.append(starts[-1] + len(places))
        least.append(sides[0])
        most.append(sides[1])

    for row in energetic.cuts:
        if row.edge <= low:  # below its edge, a cut does not hold for helpers without its clients
            held = np.flatnonzero(opened[row.helper] & (row.weight >= unit))
            weights = np.append(row.weight[held] // unit, -1)
            add(np.append(place[row.helper, held], count), weights, (-np.inf, -(row.edge // unit)))
    for i in range(instance.helpers):
        held = np.flatnonzero(opened[i])
        step = max(1, int(instance.helper_memory[i]) // MAX_UNITS)
        add(place[i, held], instance.client_memory[held] // step, (-np.inf, int(instance.helper_memory[i]) // step))
    for j in range(instance.clients):
        held = np.flatnonzero(opened[:, j])
        add(place[held, j], np.ones(len(held)), (1, 1))
    shape = (len(least), count + 1)
    matrix = csr_matrix((np.concatenate(values).astype(float), np.concatenate(columns), starts), shape)
    return _Inequalities(matrix, np.array(least, float), np.array(most, float))
