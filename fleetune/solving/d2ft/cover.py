"""Ties broken across subnets: every micro-batch is trained by some subnet if the budgets allow it at all, evenly.

Subnets choose in turn, each the micro-batches that the fewest train so far and from a start that rotates; what every
subnet trains anyway is counted before. Where scores tie only in part that may leave a micro-batch out that could have
been in: then subnets exchange along shortest alternating paths (Berge, PNAS 1957), after which nobody is left out
without need - for knapsacks of their own, proven by the theorem; under a joint capacity a path passes a subnet once.
"""

from collections import deque

import numpy as np

from fleetune.solving.d2ft.case import Bools, Ints
from fleetune.solving.d2ft.freedom import Freedom


def covering(freedom: Freedom) -> Bools:
    """What every subnet trains [subnet, micro-batch], within the freedom."""
    if not freedom.open.any():
        return freedom.must.copy()
    chosen = _in_turn(freedom)
    times = chosen.sum(axis=0)
    if (times == 0).any():
        _Exchange(freedom, chosen, times).run()
    return chosen


def spreading(freedom: Freedom, busy: Ints, later: Bools) -> Bools:
    """What every subnet runs forward: of ties those not in `later`, then those that the fewest are `busy` with."""
    chosen, busy = freedom.must.copy(), busy + freedom.must.sum(axis=0)
    start, size = 0, chosen.shape[1]
    for k in np.flatnonzero(freedom.open):
        ties = np.flatnonzero(freedom.may[k] & ~freedom.must[k])
        need = int(freedom.wanted[k] - freedom.must[k].sum())
        picked = _first(ties, (later[k][ties] * (len(chosen) + 1) + busy[ties]), start, size)[:need]
        chosen[k, picked] = True
        busy[picked] += 1
        start = (start + need) % size
    return chosen


def _in_turn(freedom: Freedom) -> Bools:
    chosen = freedom.must.copy()
    times = chosen.sum(axis=0)
    start, size = 0, chosen.shape[1]
    for k in np.flatnonzero(freedom.open):
        ties = np.flatnonzero(freedom.may[k] & ~freedom.must[k])
        need = int(freedom.wanted[k] - freedom.must[k].sum())
        order = _first(ties, times[ties], start, size)
        picked = order[:need] if freedom.least is None else _allowed(freedom, int(k), order, need)
        chosen[k, picked] = True
        times[picked] += 1
        start = (start + need) % size
    return chosen


def _first(ties: Ints, times: Ints, start: int, size: int) -> Ints:
    """Micro-batches by how often they were taken, from `start` on and round."""
    return ties[np.argsort(times * size + (ties - start) % size, kind="stable")]


def _kind(freedom: Freedom, k: int, i: int) -> int:
    """Of a tie: 0 full or nothing, 1 full or forward, 2 full or forward or nothing."""
    assert freedom.or_forward is not None and freedom.or_any is not None
    return 1 if freedom.or_forward[k, i] else 2 if freedom.or_any[k, i] else 0


def _allowed(freedom: Freedom, k: int, order: Ints, need: int) -> list[int]:
    """The first `need` of the order that can be had together with the limits of a joint capacity."""
    assert freedom.least is not None and freedom.most is not None
    least, most = int(freedom.least[k]), int(freedom.most[k])
    if least <= 0 and most >= need:
        return [int(i) for i in order[:need]]
    kinds = [_kind(freedom, k, i) for i in order]
    left = [kinds.count(kind) for kind in range(3)]
    picked: list[int] = []
    for i, kind in zip(order, kinds, strict=True):
        if need == 0:
            break
        left[kind] -= 1
        after = (max(0, least - (kind == 1)), most - (kind > 0))
        if after[1] >= after[0] <= need - 1 <= left[0] + min(after[1], left[1] + left[2]):
            picked.append(int(i))
            need, (least, most) = need - 1, after
    return picked


class _Exchange:
    """Brings in micro-batches that nobody trains, by exchanges inside subnets that end at one trained twice."""

    def __init__(self, freedom: Freedom, chosen: Bools, times: Ints) -> None:
        self.freedom, self.chosen, self.times = freedom, chosen, times
        self.dead = np.zeros(len(times), bool)
        """Nothing can be brought in by way of these, now or later."""

    def run(self) -> None:
        """Bring in all that can be."""
        for out in np.flatnonzero(self.times == 0):
            if not ((self.times > 1) & (self.chosen & ~self.freedom.must).any(axis=0)).any():
                return
            self._bring_in(int(out))

    def _bring_in(self, out: int) -> None:
        came: dict[int, tuple[int, int]] = {}
        """Micro-batch that leaves: (subnet it leaves, micro-batch that enters there)."""
        leaving = self.chosen & ~self.freedom.must & ~self.dead
        queue = deque([out])
        reached = [out]
        while queue:
            enters = queue.popleft()
            passed = _passed(came, enters)
            for k in np.flatnonzero(self.freedom.may[:, enters] & ~self.chosen[:, enters] & leaving.any(axis=1)):
                if k in passed:
                    continue
                swaps = np.flatnonzero(leaving[k] & self._may_leave(int(k), enters))
                came.update((int(leaves), (int(k), enters)) for leaves in swaps)
                twice = swaps[self.times[swaps] > 1]
                if len(twice):
                    return self._follow(came, int(twice[0]))
                leaving[:, swaps] = False
                queue.extend(swaps.tolist())
                reached += swaps.tolist()
        self.dead[reached] = True

    def _may_leave(self, k: int, enters: int) -> Bools:
        """[micro-batch]: for which the limits of a joint capacity hold if it is exchanged."""
        limits = self.freedom
        if limits.or_forward is None or limits.or_any is None or limits.least is None or limits.most is None:
            return np.ones(len(self.times), bool)
        mine = self.chosen[k] & ~limits.must[k]
        or_forward, either = limits.or_forward[k], limits.or_forward[k] | limits.or_any[k]
        least = int((mine & or_forward).sum()) + int(or_forward[enters]) - or_forward
        most = int((mine & either).sum()) + int(either[enters]) - either
        found: Bools = (least >= limits.least[k]) & (most <= limits.most[k])
        return found

    def _follow(self, came: dict[int, tuple[int, int]], leaves: int) -> None:
        self.times[leaves] -= 1
        while leaves in came:
            k, enters = came[leaves]
            self.chosen[k, leaves], self.chosen[k, enters] = False, True
            leaves = enters
        self.times[leaves] += 1


def _passed(came: dict[int, tuple[int, int]], at: int) -> set[int]:
    """The subnets on the path so far."""
    passed = set()
    while at in came:
        k, at = came[at]
        passed.add(k)
    return passed
