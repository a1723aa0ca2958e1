"""Both operations within one capacity per subnet, exactly.

D2FT (Ding and others, 2025), eq. (6), which the paper gives up for two knapsacks since the scales of the two scores are
hard to weigh. Without a weight there is nothing to weigh: backward scores first, forward scores then (lexicographic,
what the paper's `Max` scaler tends to, Table X). With a weight it is the paper's `Scaler`, solved and not approximated.
"""

import numpy as np

from fleetune.errors import Refused
from fleetune.solving.d2ft.budget import fitting
from fleetune.solving.d2ft.case import Bools, Case, Table, merged
from fleetune.solving.d2ft.counts import best_sizes, sizes
from fleetune.solving.d2ft.cover import covering, spreading
from fleetune.solving.d2ft.freedom import Freedom, best, settled
from fleetune.solving.d2ft.prices import Gains, all_best
from fleetune.solving.d2ft.split import largest, sets_at


def plan(case: Case, weight: float | None) -> Table:
    """The table of the largest weighted sum; weight None: of the largest backward sum, among these of the largest
    forward sum.

    Refused: a subnet without capacity for both, or whose micro-batches cost differently.
    """
    rooms = [_room(case, k) for k in range(case.subnets)]
    if weight is None:
        gains, full, forward = _lexicographic(case, rooms)
    else:
        forwards = {room: sizes(*room, case.micro_batches)[1] for room in set(rooms)}
        trains = np.array([len(forwards[room]) > 1 for room in rooms])
        # where nothing can be trained, backward scores say nothing, and huge ones would hide forward scores
        gains = Gains(np.where(trains[:, None], case.backward, 0.0), weight * case.forward)
        fulls, others, splits = best_sizes(gains, [forwards[room] for room in rooms])
        full, forward = sets_at(gains, splits, fulls, others)
    freedom, must, may = all_best(gains, full, forward)
    full = covering(freedom)
    inner = settled(Freedom(must & ~full, may & ~full, forward.sum(axis=1)))
    return merged(full, spreading(inner, full.sum(axis=0), full))


def _room(case: Case, k: int) -> tuple[int, int, int]:
    """Cost of a full, of a forward-only, and the capacity for both."""
    budget = case.budgets[k]
    if budget.capacity is None:
        raise Refused("capacity: method joint needs this key; give one number for each subnet")
    if not isinstance(budget.full_cost, int) or not isinstance(budget.forward_cost, int):
        raise Refused(f"costs of subnet {k} differ between micro-batches; method joint takes one for all of them")
    return budget.full_cost, budget.forward_cost, budget.capacity


def _lexicographic(case: Case, rooms: list[tuple[int, int, int]]) -> tuple[Gains, Bools, Bools]:
    """One best plan, and scores by which it is: inf for what must be trained, -inf for what must not, 0 for ties.

    A full that scores 0 is never made: it could only take room from forward-onlys.
    """
    size = case.micro_batches
    most = np.array([fitting(cost, capacity, size) for cost, _, capacity in rooms])
    fulls = np.minimum(most, (case.backward > 0).sum(axis=1))
    others = np.array(
        [fitting(cost, room - f * full, size - f) for (full, cost, room), f in zip(rooms, fulls.tolist(), strict=True)]
    )
    outer = best(case.backward, fulls)
    gains = Gains(np.where(outer.must, np.inf, np.where(outer.may, 0.0, -np.inf)), case.forward)
    full = largest(np.where(outer.must, np.inf, np.where(outer.may, -case.forward, -np.inf)), fulls)
    return gains, full, largest(np.where(full, -np.inf, case.forward), others)
