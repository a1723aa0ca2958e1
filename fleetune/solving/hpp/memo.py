"""What is known of sketches met before, so that none is judged twice: walks come back to the same few again and again.

A table of one entry per place, the last one written stays; compiled. Two sketches that share a 64-bit key would be
taken for one, once in some 1e8 searches; what a search answers is judged anew.
"""

import numpy as np
from numpy.typing import NDArray

from fleetune.compiled import inner
from fleetune.solving.hpp.sketch import Sketch

PLACES = 1 << 18
KEY, SCORE, EXACT = range(3)
"""Columns: whose, what it scores at least, and whether it scores just that."""

Memo = NDArray[np.int64]

_STAGE = 1 << 40
"""Says that a stage begins; more than any member."""
_ODD = -0x61C8864680B583EB
"""2^64 over the golden ratio, signed: one bit of a key changes half of the next one."""
_BASIS = 0x4BF29CE484222325


def new_memo() -> Memo:
    """Nothing known."""
    return np.zeros((PLACES, 3), np.int64)


@inner
def groups_key(sketch: Sketch, anew: bool) -> int:
    """Of who works with whom in which order, and of the cuts unless they are made `anew`."""
    key = int(_BASIS + sketch.size[0])
    for p in range(sketch.size[0]):
        key = _mixed(key, _STAGE if anew else _STAGE + sketch.edge[p + 1])
        for g in range(sketch.first[p], sketch.first[p + 1]):
            key = _mixed(key, sketch.device[g] + 1)
    return key


@inner
def plan_key(sketch: Sketch) -> int:
    """Of the whole plan."""
    key = _BASIS - 1
    for p in range(sketch.size[0]):
        key = _mixed(_mixed(key, sketch.edge[p + 1]), sketch.warmup[p])
        for g in range(sketch.first[p], sketch.first[p + 1]):
            key = _mixed(key, (sketch.samples[g] << 20) + sketch.device[g] + 1)
    return key


@inner
def _mixed(key: int, value: int) -> int:
    """The key of what `key` is of, followed by `value`."""
    key = (key ^ value) * _ODD
    return key ^ (key >> 32)


@inner
def recall(memo: Memo, key: int) -> tuple[int, bool]:
    """What the sketch scores at least, 0 where nothing is known, and whether it scores just that."""
    row = memo[(key ^ (key >> 17)) & (PLACES - 1)]
    if row[KEY] != key:
        return 0, False
    return row[SCORE], row[EXACT] > 0


@inner
def remember(memo: Memo, key: int, score: int, exact: bool) -> None:
    """In the place of whoever was there."""
    row = memo[(key ^ (key >> 17)) & (PLACES - 1)]
    row[KEY], row[SCORE], row[EXACT] = key, score, exact
