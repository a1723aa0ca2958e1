"""How many to train and how many to run forward only, so that the weighted sum is largest within one capacity.

V(f, o), the best sum for sizes f and o, is concave (the value of a transportation problem), and for every f there is
one o worth looking at: what the remaining capacity holds. Small tables: V for all sizes at once, by tables of the
largest sums before and behind every place of the order (see `split`), all subnets together. Large ones: cutting planes
(Kelley, J. SIAM 8, 1960) over f. The prices (m, n) at one f bound V at every other, by f m + o n + what all
micro-batches gain at these prices; look next where the least of these bounds is largest, and end when that is reached.
The bounds hold at the whole numbers o(f), so that what does not fill a capacity is no gap between bound and plan.

Both operations within one capacity per subnet, exactly.

D2FT (Ding and others, 2025), eq. (6), which the paper gives up for two knapsacks since the scales of the two scores are
hard to weigh. Without a weight there is nothing to weigh: backward scores first, forward scores then (lexicographic,
what the paper's `Max` scaler tends to, Table X). With a weight it is the paper's `Scaler`, solved and not approximated.
"""

import numpy as np

from fleetune.errors import Refused
from fleetune.solving.d2ft.instance import Bools, Instance, Ints, Table, max_count, to_table
from fleetune.solving.d2ft.ties import OptimalChoices, cover_micro_batches, spread_forwards, tightened, top_choices
from fleetune.solving.d2ft.transportation import (
    Scores,
    all_optima,
    by_advantage,
    dual_prices,
    mask_of_largest,
    sets_at_split,
    split_position,
)
from fleetune.solving.validation import Floats

SMALL = 64
"""Micro-batches up to which tables are faster."""
CELLS = 2**21
"""Of such tables at a time, over all subnets."""
ROUNDING = 2.0**-46
"""Of the best sum: bounds this near are reached."""


def feasible_counts(full_cost: int, forward_cost: int, capacity: int, micro_batches: int) -> tuple[int, list[int]]:
    """The most that can be trained, and beside every number of trained ones, from 0 on, the most forward-only."""
    most = max_count(full_cost, capacity, micro_batches)
    return most, [max_count(forward_cost, capacity - f * full_cost, micro_batches - f) for f in range(most + 1)]


def best_counts(scores: Scores, forwards: list[list[int]]) -> tuple[Ints, Ints, Ints]:
    """Of every subnet: how many to train, how many to run forward, and the place that splits their order.

    forwards: [subnet][trained], the most forward-only beside each number of trained ones that fits.
    """
    subnets, size = scores.full.shape
    order = by_advantage(scores)
    a, w = (np.take_along_axis(one, order, axis=1) for one in scores)
    if size > SMALL:
        found = [_counts_by_cutting_planes(a[k], w[k], np.array(forwards[k])) for k in range(subnets)]
    else:
        step = max(1, CELLS // (size + 1) ** 2)
        parts = [slice(k, k + step) for k in range(0, subnets, step)]
        found = [row for part in parts for row in _counts_by_tables(a[part], w[part], forwards[part])]
    fulls, splits = (np.array(column) for column in zip(*found, strict=True))
    return fulls, np.array([row[f] for row, f in zip(forwards, fulls, strict=True)]), splits


def _counts_by_tables(a: Floats, w: Floats, forwards: list[list[int]]) -> list[tuple[int, int]]:
    """(trained, split) of every subnet; of equal ones the most trained, and the last place."""
    subnets, size = a.shape
    before = _largest_sums(a)
    behind = _largest_sums(w[:, ::-1])[::-1]
    others = np.full((subnets, size + 1), -1)
    for k, row in enumerate(forwards):
        others[k, : len(row)] = row
    total = before + np.take_along_axis(behind, np.maximum(others, 0)[None], axis=2)
    total[:, others < 0] = -np.inf
    at_best = total.max(axis=0)
    fulls = size - np.argmax(at_best[:, ::-1], axis=1)
    of_best = np.take_along_axis(total, fulls[None, :, None], axis=2)[::-1, :, 0]
    return list(zip(fulls.tolist(), (size - np.argmax(of_best, axis=0)).tolist(), strict=True))


def _largest_sums(values: Floats) -> Floats:
    """[k, subnet, n]: the sum of the n largest of the first k, -inf where there are not so many."""
    subnets, size = values.shape
    found = np.full((size + 1, subnets, size + 1), -np.inf)
    found[:, :, 0] = 0.0
    for k in range(size):
        np.maximum(found[k, :, 1:], found[k, :, :-1] + values[:, k, None], out=found[k + 1, :, 1:])
    return found


def _counts_by_cutting_planes(a: Floats, w: Floats, forwards: Ints) -> tuple[int, int]:
    """(trained, split) of one subnet in descending order of a - w; forwards: [trained]."""
    trained = np.arange(len(forwards))
    bound = np.full(len(forwards), np.inf)
    value, answer = -np.inf, (0, 0)
    f = len(forwards) - 1
    while True:
        o = int(forwards[f])
        k = split_position(a, w, f, o)
        reached, m, n = _priced(a, w, k, (f, o))
        if reached > value:
            value, answer = reached, (f, k)
        np.minimum(bound, trained * m + forwards * n + np.maximum(np.maximum(a - m, w - n), 0.0).sum(), out=bound)
        bound[f] = reached
        f = int(np.argmax(bound))
        if bound[f] <= value + ROUNDING * abs(value):
            return answer


def _priced(a: Floats, w: Floats, k: int, counts: tuple[int, int]) -> tuple[float, float, float]:
    """The sum of the best sets split at k, and the prices of a place in each."""
    index = np.arange(len(a))[None]
    full = mask_of_largest(np.where(index < k, a, -np.inf), np.array([counts[0]]))
    forward = mask_of_largest(np.where(index < k, -np.inf, w), np.array([counts[1]]))
    found = dual_prices(Scores(a[None], w[None]), full, forward)
    return float(a[full[0]].sum() + w[forward[0]].sum()), float(found.full[0]), float(found.forward[0])


def plan(instance: Instance, weight: float | None) -> Table:
    """The table of the largest weighted sum; weight None: of the largest backward sum, among these of the largest
    forward sum.

    Refused: a subnet without capacity for both, or whose micro-batches cost differently.
    """
    rooms = [_room(instance, k) for k in range(instance.subnets)]
    if weight is None:
        scores, full, forward = _lexicographic(instance, rooms)
    else:
        forwards = {room: feasible_counts(*room, instance.micro_batches)[1] for room in set(rooms)}
        trains = np.array([len(forwards[room]) > 1 for room in rooms])
        # where nothing can be trained, backward scores say nothing, and huge ones would hide forward scores
        scores = Scores(np.where(trains[:, None], instance.backward, 0.0), weight * instance.forward)
        fulls, others, splits = best_counts(scores, [forwards[room] for room in rooms])
        full, forward = sets_at_split(scores, splits, fulls, others)
    choices, must, may = all_optima(scores, full, forward)
    full = cover_micro_batches(choices)
    inner = tightened(OptimalChoices(must & ~full, may & ~full, forward.sum(axis=1)))
    return to_table(full, spread_forwards(inner, full.sum(axis=0), full))


def _room(instance: Instance, k: int) -> tuple[int, int, int]:
    """Cost of a full, of a forward-only, and the capacity for both."""
    budget = instance.budgets[k]
    if budget.capacity is None:
        raise Refused("capacity: method joint needs this key; give one number for each subnet")
    if not isinstance(budget.full_cost, int) or not isinstance(budget.forward_cost, int):
        raise Refused(f"costs of subnet {k} differ between micro-batches; method joint takes one for all of them")
    return budget.full_cost, budget.forward_cost, budget.capacity


def _lexicographic(instance: Instance, rooms: list[tuple[int, int, int]]) -> tuple[Scores, Bools, Bools]:
    """One best plan, and scores by which it is: inf for what must be trained, -inf for what must not, 0 for ties.

    A full that scores 0 is never made: it could only take room from forward-onlys.
    """
    size = instance.micro_batches
    most = np.array([max_count(cost, capacity, size) for cost, _, capacity in rooms])
    fulls = np.minimum(most, (instance.backward > 0).sum(axis=1))
    others = np.array(
        [
            max_count(cost, room - f * full, size - f)
            for (full, cost, room), f in zip(rooms, fulls.tolist(), strict=True)
        ]
    )
    outer = top_choices(instance.backward, fulls)
    scores = Scores(np.where(outer.must, np.inf, np.where(outer.may, 0.0, -np.inf)), instance.forward)
    full = mask_of_largest(np.where(outer.must, np.inf, np.where(outer.may, -instance.forward, -np.inf)), fulls)
    return scores, full, mask_of_largest(np.where(full, -np.inf, instance.forward), others)
