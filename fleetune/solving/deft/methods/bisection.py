"""bisection: blocks and bandwidth chosen together, the global optimum (P2); ours.

To end by T, block l on device k needs the part upload_s[k] / (T - compute_s[k, l]) of the band. A threshold T can be
kept just when the cheapest assignment (Hungarian method) needs no more than the whole band, and what can be kept at T
can be kept later. So the least T lies between a threshold that cannot be kept and the end of the best allocation found.
Each allocation found ends exactly where its parts add up to the band, which is then the new upper end: Newton's method
on matchings, with halvings between so that their number is bounded. LoLa-DEFT (Section V) calls this problem NP-hard
and ascends its dual.

Where bandwidth is equal there is nothing to choose but the blocks: an exact bottleneck matching.
"""

from typing import NamedTuple

import numpy as np

from fleetune.solving.deft.bottleneck import assigned, bottleneck, matched
from fleetune.solving.deft.case import Case, Draft, Ints
from fleetune.solving.deft.division import divided, ends_s

CLOSE = 1e-12
"""Relative distance between the ends that is left: far above the rounding of a Hungarian, far below 1e-9."""
HALVING = 3
"""Every which step halves."""


class Optimum(NamedTuple):
    """The best allocation, and the proof."""

    devices: Ints
    low_s: float
    """Proven: cannot be kept, or is the optimum itself."""
    assignments: int
    """Assignment problems solved to get within CLOSE."""


def plan(case: Case) -> Draft:
    """The optimum of the problem as it is stated."""
    if case.problem.bandwidth == "equal":
        found = matched(case.even_s)
        return case.evenly(found.devices, found.threshold, found.solved_by)
    best = optimum(case)
    drafts = (divided(case, best.devices), case.evenly(bottleneck(case.even_s).devices))
    draft = min(drafts, key=case.latency_s)  # equal parts may be the best ones, and then are free of rounding
    return draft._replace(low_s=min(best.low_s, case.latency_s(draft)))


def optimum(case: Case) -> Optimum:
    """Of blocks and bandwidth together."""
    devices = bottleneck(case.even_s).devices
    high_s = ends_s(case, devices)
    alone_s = np.where(case.fits, case.compute_s + case.upload_s, np.inf)
    low_s, solved = bottleneck(alone_s).threshold, 0
    while low_s < high_s * (1 - CLOSE):
        solved += 1
        halves = solved % HALVING == 0
        at_s = max(low_s, min((low_s + high_s) / 2 if halves else np.inf, high_s * (1 - CLOSE)))
        found = cheapest(case, at_s)
        found_s = np.inf if found is None else ends_s(case, found)
        if found is not None and found_s < high_s:
            devices, high_s = found, found_s
        elif at_s > low_s:
            low_s = at_s
        else:
            break
    while (found := cheapest(case, high_s)) is not None and ends_s(case, found) < high_s:
        devices, high_s = found, ends_s(case, found)  # closer than CLOSE, so that no other method is ahead by a bit
    return Optimum(devices, min(low_s, high_s), solved)


def cheapest(case: Case, at_s: float) -> Ints | None:
    """Devices of the blocks that end by `at_s` on the least part of the band; None: the whole is not enough."""
    gaps_s = at_s - case.compute_s
    usable = case.fits & (gaps_s >= case.upload_s) & (gaps_s > 0)
    parts = np.divide(case.upload_s, gaps_s, out=np.full_like(gaps_s, np.inf), where=usable)
    devices = assigned(parts)
    if devices is None or np.sum(parts[np.arange(case.blocks), devices]) > 1:
        return None
    return devices
