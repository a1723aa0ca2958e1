"""A knapsack for every subnet: as many of the best as fit where costs are alike, the general program where not."""

from collections.abc import Sequence

import numpy as np

from fleetune.solving.d2ft.budget import Cost
from fleetune.solving.d2ft.case import Ints
from fleetune.solving.d2ft.freedom import Freedom, best
from fleetune.solving.d2ft.knapsack import best_subset
from fleetune.solving.proofs import Floats


def selection(scores: Floats, counts: Ints, knapsacks: Sequence[tuple[Cost, int]]) -> Freedom:
    """The best choices of every subnet; `counts` of them fit where costs are alike.

    knapsacks: [subnet] of cost and capacity. A score of -inf forbids. Where costs differ one best choice is given:
    equals of other costs are no ties.
    """
    unequal = [k for k, (cost, _) in enumerate(knapsacks) if not isinstance(cost, int)]
    if not unequal:
        return best(scores, counts)
    counts = counts.copy()
    counts[unequal] = 0
    freedom = best(scores, counts)
    for k in unequal:
        cost, capacity = knapsacks[k]
        assert not isinstance(cost, int)
        allowed = np.flatnonzero(np.isfinite(scores[k]))
        chosen = allowed[best_subset(scores[k][allowed], [cost[i] for i in allowed], capacity)]
        freedom.must[k, chosen] = freedom.may[k, chosen] = True
        counts[k] = len(chosen)
    return freedom
