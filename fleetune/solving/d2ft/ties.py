"""Sets of optimal choices per subnet, and selection among ties so that subnets together train every micro-batch.

Ties are common (weight magnitude does not depend on the sample), so all optima are described first and then chosen from
with regard to the other subnets. Subnets choose in turn, each the micro-batches that the fewest train so far, from a
rotating start; forced choices count in advance. If scores tie only in part, this may leave out a micro-batch
needlessly: then subnets exchange along shortest alternating paths (Berge, PNAS 1957), after which none is left out
without need - proven by the theorem for independent knapsacks; under a joint capacity a path passes a subnet once.
"""

from collections import deque
from typing import NamedTuple

import numpy as np

from fleetune.arrays import Bools, Floats, Ints


class OptimalChoices(NamedTuple):
    """Sets of micro-batches [subnet, micro-batch]; any choice of `wanted` between `must` and `may` is optimal.

    If the two operations share a capacity, the number of trained ties of two kinds is limited as well: of those
    otherwise run forward (`or_forward`) at least `least`; of these and of those that may be either or nothing
    (`or_any`) together at most `most`. Both count `may` without `must`.
    """

    must: Bools
    may: Bools
    wanted: Ints
    or_forward: Bools | None = None
    or_any: Bools | None = None
    least: Ints | None = None
    most: Ints | None = None

    @property
    def open(self) -> Bools:
        """[subnet], True where there is a choice."""
        found: Bools = self.may.sum(axis=1) > self.wanted
        return found


def top_choices(scores: Floats, count: Ints) -> OptimalChoices:
    """Return the choices of the `count` largest scores of every row [subnet, micro-batch]; -inf is never taken.

    count must leave out the entries of -inf.
    """
    descending = -np.sort(-scores, axis=1)
    last = np.maximum(count - 1, 0)
    least = np.where(count > 0, np.take_along_axis(descending, last[:, None], axis=1)[:, 0], np.inf)[:, None]
    return tightened(OptimalChoices(scores > least, scores >= least, count))


def tightened(choices: OptimalChoices) -> OptimalChoices:
    """Move `may` to `must` where all of it is needed."""
    return choices._replace(must=np.where(choices.open[:, None], choices.must, choices.may))


def cover_micro_batches(choices: OptimalChoices) -> Bools:
    """Choose what every subnet trains, [subnet, micro-batch]."""
    if not choices.open.any():
        return choices.must.copy()
    chosen = _choose_in_turn(choices)
    times = chosen.sum(axis=0)
    if (times == 0).any():
        _Exchange(choices, chosen, times).run()
    return chosen


def spread_forwards(choices: OptimalChoices, busy: Ints, later: Bools) -> Bools:
    """Choose what every subnet runs forward: ties not in `later` first, then those with the fewest `busy` subnets."""
    chosen, busy = choices.must.copy(), busy + choices.must.sum(axis=0)
    start, size = 0, chosen.shape[1]
    for k in np.flatnonzero(choices.open):
        ties = np.flatnonzero(choices.may[k] & ~choices.must[k])
        need = int(choices.wanted[k] - choices.must[k].sum())
        picked = _least_used_first(ties, (later[k][ties] * (len(chosen) + 1) + busy[ties]), start, size)[:need]
        chosen[k, picked] = True
        busy[picked] += 1
        start = (start + need) % size
    return chosen


def _choose_in_turn(choices: OptimalChoices) -> Bools:
    chosen = choices.must.copy()
    times = chosen.sum(axis=0)
    start, size = 0, chosen.shape[1]
    for k in np.flatnonzero(choices.open):
        ties = np.flatnonzero(choices.may[k] & ~choices.must[k])
        need = int(choices.wanted[k] - choices.must[k].sum())
        order = _least_used_first(ties, times[ties], start, size)
        picked = order[:need] if choices.least is None else _first_within_limits(choices, int(k), order, need)
        chosen[k, picked] = True
        times[picked] += 1
        start = (start + need) % size
    return chosen


def _least_used_first(ties: Ints, times: Ints, start: int, size: int) -> Ints:
    """Sort micro-batches by how often they were taken, cyclically from `start`."""
    return ties[np.argsort(times * size + (ties - start) % size, kind="stable")]


def _tie_kind(choices: OptimalChoices, k: int, i: int) -> int:
    """Classify a tie: 0 full or nothing, 1 full or forward, 2 full or forward or nothing."""
    assert choices.or_forward is not None and choices.or_any is not None
    return 1 if choices.or_forward[k, i] else 2 if choices.or_any[k, i] else 0


def _first_within_limits(choices: OptimalChoices, k: int, order: Ints, need: int) -> list[int]:
    """Return the first `need` of the order that satisfy the limits of a joint capacity together."""
    assert choices.least is not None and choices.most is not None
    least, most = int(choices.least[k]), int(choices.most[k])
    if least <= 0 and most >= need:
        return [int(i) for i in order[:need]]
    kinds = [_tie_kind(choices, k, i) for i in order]
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
    """Adds untrained micro-batches by exchanges within subnets along a path to one that is trained twice."""

    def __init__(self, choices: OptimalChoices, chosen: Bools, times: Ints) -> None:
        self.choices, self.chosen, self.times = choices, chosen, times
        self.unreachable = np.zeros(len(times), bool)
        """[micro-batch], True where no path can start or pass."""

    def run(self) -> None:
        """Add every untrained micro-batch that can be added."""
        for out in np.flatnonzero(self.times == 0):
            if not ((self.times > 1) & (self.chosen & ~self.choices.must).any(axis=0)).any():
                return
            self._train(int(out))

    def _train(self, out: int) -> None:
        exchanges: dict[int, tuple[int, int]] = {}
        """Micro-batch that leaves -> (its subnet, micro-batch that enters there)."""
        leaving = self.chosen & ~self.choices.must & ~self.unreachable
        queue = deque([out])
        reached = [out]
        while queue:
            enters = queue.popleft()
            passed = _subnets_on_path(exchanges, enters)
            for k in np.flatnonzero(self.choices.may[:, enters] & ~self.chosen[:, enters] & leaving.any(axis=1)):
                if k in passed:
                    continue
                swaps = np.flatnonzero(leaving[k] & self._may_leave(int(k), enters))
                exchanges.update((int(leaves), (int(k), enters)) for leaves in swaps)
                trained_twice = swaps[self.times[swaps] > 1]
                if len(trained_twice):
                    return self._follow(exchanges, int(trained_twice[0]))
                leaving[:, swaps] = False
                queue.extend(swaps.tolist())
                reached += swaps.tolist()
        self.unreachable[reached] = True

    def _may_leave(self, k: int, enters: int) -> Bools:
        """Return [micro-batch] True where its exchange keeps the limits of a joint capacity."""
        limits = self.choices
        if limits.or_forward is None or limits.or_any is None or limits.least is None or limits.most is None:
            return np.ones(len(self.times), bool)
        mine = self.chosen[k] & ~limits.must[k]
        or_forward, either = limits.or_forward[k], limits.or_forward[k] | limits.or_any[k]
        least = int((mine & or_forward).sum()) + int(or_forward[enters]) - or_forward
        most = int((mine & either).sum()) + int(either[enters]) - either
        found: Bools = (least >= limits.least[k]) & (most <= limits.most[k])
        return found

    def _follow(self, exchanges: dict[int, tuple[int, int]], leaves: int) -> None:
        self.times[leaves] -= 1
        while leaves in exchanges:
            k, enters = exchanges[leaves]
            self.chosen[k, leaves], self.chosen[k, enters] = False, True
            leaves = enters
        self.times[leaves] += 1


def _subnets_on_path(exchanges: dict[int, tuple[int, int]], at: int) -> set[int]:
    """Return the subnets on the path so far."""
    passed = set()
    while at in exchanges:
        k, at = exchanges[at]
        passed.add(k)
    return passed
