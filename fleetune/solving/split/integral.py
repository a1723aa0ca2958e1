"""The energetic bound of whole assignments: its linear program as a mixed-integer one, for a branch and cut solver.

Where every client may be nearly anywhere, the fractional bound is weak by a few percent and constraint solvers, which
learn little from sums, hardly move it: branch and cut does. The bound is that of the branching tree so far, with
coefficients brought down to MOST_UNITS exactly: a sum of whole parts fits what is left of the horizon in whole parts.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fleetune.solving.split.book import masks_of
from fleetune.solving.split.case import Bools
from fleetune.solving.split.energetic import Energetic
from fleetune.solving.split.grid import Floats

MOST_UNITS = 20_000
"""Of the horizon, in a model."""
SLACK = 1e-2
"""Of a unit of the model: above the solver's tolerance."""


class Integral(NamedTuple):
    """What the tree gave."""

    bound: int
    """No plan is shorter."""
    masks: list[int] | None
    """The clients of each helper in the best assignment met: nearly a plan of that length, by the rows."""


def integral_bound(energetic: Energetic, span: tuple[int, int], nodes: int, left_s: float = math.inf) -> Integral:
    """The bound on all plans shorter than the second of `span`, whose first is a bound, after so many nodes."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    case, horizon = energetic.case, span[1] - 1
    opened = energetic.open_at(horizon)
    if not opened.any(axis=0).all():
        return Integral(span[1], None)
    unit = max(1, horizon // MOST_UNITS)
    matrix, least, most = _rows(energetic, span[0], opened, unit)
    count = int(opened.sum())
    options: dict[str, float] = {"node_limit": nodes}
    if math.isfinite(left_s):
        options["time_limit"] = max(0.01, left_s)
    solved = milp(
        np.append(np.zeros(count), 1.0),
        integrality=np.ones(count + 1),
        bounds=Bounds(np.zeros(count + 1), np.append(np.ones(count), horizon // unit)),
        constraints=LinearConstraint(matrix, least, most),
        options=options,
    )
    if solved.status == 2:
        return Integral(span[1], None)
    bound = span[0]
    if solved.mip_dual_bound is not None and math.isfinite(solved.mip_dual_bound):
        bound = max(bound, unit * math.ceil(solved.mip_dual_bound - SLACK))
    if solved.x is None:
        return Integral(bound, None)
    share = np.zeros(opened.shape)
    share[opened] = solved.x[:-1]
    energetic.separate(np.round(share), horizon)
    return Integral(bound, masks_of(case, np.argmax(share, axis=0).tolist()))


def _rows(energetic: Energetic, low: int, opened: Bools, unit: int) -> tuple[Any, Floats, Floats]:
    """Matrix and sides over the open pairs, helper by helper, and the horizon in units."""
    from scipy.sparse import csr_matrix

    case, count = energetic.case, int(opened.sum())
    place = np.cumsum(opened.ravel()).reshape(opened.shape) - 1
    columns, values, starts, least, most = [], [], [0], [], []

    def add(places: Any, weights: Any, sides: tuple[float, float]) -> None:
        columns.append(places)
        values.append(weights)
        starts.append(starts[-1] + len(places))
        least.append(sides[0])
        most.append(sides[1])

    for row in energetic.rows:
        if row.edge <= low:  # below its edge a row says nothing of helpers without its clients
            held = np.flatnonzero(opened[row.helper] & (row.weight >= unit))
            weights = np.append(row.weight[held] // unit, -1)
            add(np.append(place[row.helper, held], count), weights, (-np.inf, -(row.edge // unit)))
    for i in range(case.helpers):
        held = np.flatnonzero(opened[i])
        step = max(1, int(case.helper_memory[i]) // MOST_UNITS)
        add(place[i, held], case.client_memory[held] // step, (-np.inf, int(case.helper_memory[i]) // step))
    for j in range(case.clients):
        held = np.flatnonzero(opened[:, j])
        add(place[held, j], np.ones(len(held)), (1, 1))
    shape = (len(least), count + 1)
    matrix = csr_matrix((np.concatenate(values).astype(float), np.concatenate(columns), starts), shape)
    return matrix, np.array(least, float), np.array(most, float)
