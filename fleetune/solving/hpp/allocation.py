"""Samples of a micro-batch dealt to the devices of a group so that the slowest is as fast as can be."""

import heapq
from collections.abc import Sequence

import numpy as np


def allocate(seconds: Sequence[Sequence[float]], most: Sequence[int], samples: int) -> list[int] | None:
    """How many samples each device takes: at least 1, at most `most`, `samples` in all; None where that is impossible.

    seconds[d][y - 1] is what device d needs for y samples. The largest of the chosen times is the least possible.
    Where times grow with samples, each sample goes where it hurts least (exact by exchange: moving one away from the
    slowest device would raise another to at least as much); else by dynamic programming over partial sums, among
    equals the least sum of times.
    """
    most = [min(limit, samples) for limit in most]
    if any(limit < 1 for limit in most) or sum(most) < samples or len(most) > samples:
        return None
    grows = all(a <= b for row in seconds for a, b in zip(row, row[1:], strict=False))
    return _one_by_one(seconds, most, samples) if grows else _by_sums(seconds, most, samples)


def _one_by_one(seconds: Sequence[Sequence[float]], most: Sequence[int], samples: int) -> list[int]:
    dealt = [1] * len(most)
    after = [(seconds[d][1], d) for d in range(len(most)) if most[d] > 1]
    heapq.heapify(after)
    for _ in range(samples - len(most)):
        _, chosen = after[0]
        dealt[chosen] += 1
        if dealt[chosen] < most[chosen]:
            heapq.heapreplace(after, (seconds[chosen][dealt[chosen]], chosen))
        else:
            heapq.heappop(after)
    return dealt


def _by_sums(seconds: Sequence[Sequence[float]], most: Sequence[int], samples: int) -> list[int]:
    slowest = _table(seconds, most, samples, limit=np.inf, add=False)[0][-1][samples]
    _, choices = _table(seconds, most, samples, limit=slowest, add=True)
    dealt, left = [], samples
    for choice in reversed(choices):
        dealt.append(int(choice[left]))
        left -= dealt[-1]
    return dealt[::-1]


def _table(
    seconds: Sequence[Sequence[float]], most: Sequence[int], samples: int, *, limit: float, add: bool
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """best[d][s]: least largest (or, with `add`, summed) time of the devices up to d on s samples, none over `limit`;
    beside it the samples that d takes then."""
    best = [np.array([0.0] + [np.inf] * samples)]
    choices = []
    for row, limit_samples in zip(seconds, most, strict=True):
        here, choice = np.full(samples + 1, np.inf), np.zeros(samples + 1, dtype=np.int64)
        for y in range(1, limit_samples + 1):
            if row[y - 1] > limit:
                continue
            before = best[-1][: samples + 1 - y]
            value = before + row[y - 1] if add else np.maximum(before, row[y - 1])
            better = value < here[y:]
            here[y:][better] = value[better]
            choice[y:][better] = y
        best.append(here)
        choices.append(choice)
    return best, choices
