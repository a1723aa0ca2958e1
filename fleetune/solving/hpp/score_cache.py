"""Cache of scores of candidates, since walks return to the same few again and again; compiled.

A direct-mapped hash table: a new entry replaces the old one in its slot. Two candidates with the same 64-bit key, once
in some 1e8 searches, are taken for one; a search evaluates its answer anew.
"""

import numpy as np
from numpy.typing import NDArray

from fleetune.compiled import inner
from fleetune.solving.hpp.candidate import Candidate

SLOTS = 1 << 18
KEY, SCORE, EXACT = range(3)
"""Columns: the key, a lower bound of the score, whether the bound is the score."""

ScoreCache = NDArray[np.int64]

_STAGE = 1 << 40
"""Marks the start of a stage; larger than any device index."""
_ODD = -0x61C8864680B583EB
"""2^64 over the golden ratio, signed: one bit of a key changes half of the next one."""
_BASIS = 0x4BF29CE484222325


def new_score_cache() -> ScoreCache:
    """An empty cache."""
    return np.zeros((SLOTS, 3), np.int64)


@inner
def groups_key(candidate: Candidate, anew: bool) -> int:
    """Key of the groups and their order, and of the cuts unless these are to be made `anew`."""
    key = int(_BASIS + candidate.size[0])
    for p in range(candidate.size[0]):
        key = _mixed(key, _STAGE if anew else _STAGE + candidate.edge[p + 1])
        for g in range(candidate.first[p], candidate.first[p + 1]):
            key = _mixed(key, candidate.device[g] + 1)
    return key


@inner
def plan_key(candidate: Candidate) -> int:
    """Key of the whole plan."""
    key = _BASIS - 1
    for p in range(candidate.size[0]):
        key = _mixed(_mixed(key, candidate.edge[p + 1]), candidate.warmup[p])
        for g in range(candidate.first[p], candidate.first[p + 1]):
            key = _mixed(key, (candidate.samples[g] << 20) + candidate.device[g] + 1)
    return key


@inner
def _mixed(key: int, value: int) -> int:
    """Extend a key by a value."""
    key = (key ^ value) * _ODD
    return key ^ (key >> 32)


@inner
def look_up(cache: ScoreCache, key: int) -> tuple[int, bool]:
    """Return a lower bound of the score (0 where nothing is known), and whether it is the score itself."""
    row = cache[(key ^ (key >> 17)) & (SLOTS - 1)]
    if row[KEY] != key:
        return 0, False
    return row[SCORE], row[EXACT] > 0


@inner
def store(cache: ScoreCache, key: int, score: int, exact: bool) -> None:
    """Write an entry to its slot, replacing what was there."""
    row = cache[(key ^ (key >> 17)) & (SLOTS - 1)]
    row[KEY], row[SCORE], row[EXACT] = key, score, exact
