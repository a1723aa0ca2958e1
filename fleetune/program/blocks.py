"""The repeated blocks of a model, derived from the names of its units."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

NUMBERED = re.compile(r"\d+(@\d+)?")


class Run(NamedTuple):
    """Units [first, end) of a list that belong to one block, or to none."""

    first: int
    end: int
    block: str
    """Empty: outside blocks."""


def block_runs(names: Sequence[str]) -> list[Run]:
    """Return the runs of neighbours in the same block; together they are all units."""
    blocks = block_of(names)
    edges = [0, *(k for k in range(1, len(names)) if blocks[k] != blocks[k - 1]), len(names)]
    return [Run(first, end, blocks[first]) for first, end in pairwise(edges) if first < end]


def block_of(names: Sequence[str]) -> list[str]:
    """The block of every unit, derived from its name; empty for units outside blocks (embeddings, head).

    A block's name ends in its number (`encoder.layer.3`). Where a numbered part consists of numbered parts only, these
    are the blocks (`encoder.stages.0.layers.1` of ResNet), as with units of granularity `block`.
    """
    inside = [_numbered(name) for name in names]
    found = [""] * len(names)
    for depth in range(max(map(len, inside), default=0)):
        finer = [parts[depth] if depth < len(parts) else "" for parts in inside]
        for block in set(found):
            places = [k for k in range(len(names)) if found[k] == block]
            lists = {finer[k].rpartition(".")[0] for k in places}
            if depth == 0 or (len(lists) == 1 and lists != {""}):
                for k in places:
                    found[k] = finer[k]
    return found


def _numbered(name: str) -> list[str]:
    """`stages.0.layers.1.conv` -> [`stages.0`, `stages.0.layers.1`]"""
    words = name.split(".")
    return [".".join(words[: k + 1]) for k in range(1, len(words)) if NUMBERED.fullmatch(words[k])]
