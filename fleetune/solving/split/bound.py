"""Lower bounds on the makespan of every plan, interrupted or not, cheap enough for any method to report."""

from __future__ import annotations

import numpy as np

from fleetune.solving.split.case import Case
from fleetune.solving.split.energetic import Energetic
from fleetune.solving.split.watch import Watch

MOST_PAIRS = 5_000
"""Helpers times clients up to which linear programs are as quick as the heuristics that report their bound."""
NONE = 2**52
"""Above every time that a problem may have."""


def quick_bound(case: Case, watch: Watch | None = None) -> int:
    """The longest shortest path of a client, the work shared out, and the energetic bound of fractional assignments."""
    energetic = Energetic(case)
    return energetic_bound(energetic, highest(case), MOST_PAIRS, watch)


def energetic_bound(energetic: Energetic, high: int, most_pairs: int, watch: Watch | None = None) -> int:
    """As `quick_bound`; give a plan's makespan as `high`, and rows that matter stay in `energetic`.

    Where time is short the bound is one of the first two, or as far as the third came.
    """
    case = energetic.case
    low = min(high, max(energetic.path_bound(), volume_bound(case)))
    return energetic.least(low, high, watch) if case.linked.size <= most_pairs else low


def volume_bound(case: Case) -> int:
    """The least work of all clients, shared out: a used helper also waits for its first release and last remainder.

    Which helpers are used is not known: those that lose least by that, in the best number.
    """
    least = np.where(case.linked, case.forward + case.backward, NONE).min(axis=0).sum()
    first = np.where(case.linked, case.release, NONE).min(axis=1)
    last = np.where(case.linked, case.tail, NONE).min(axis=1) + 2 * case.switch_cost
    edges = np.sort((first + last)[case.linked.any(axis=1)])
    if not case.linked.any(axis=0).all():
        return NONE  # a client has no helper: there is no plan
    used = np.arange(1, len(edges) + 1)
    return int(min(-(-(least + edges.cumsum()) // used)))


def highest(case: Case) -> int:
    """More than any plan without needless idling takes."""
    alone = case.release.max() + case.between.max() + case.tail.max() + 2 * case.switch_cost.max()
    work = (case.forward + case.backward).max(axis=0).sum()
    return int(alone + work)
