"""The subnets of D2FT (Ding et al., "You Don't Need All Attentions", §II-A1): one head of attention each, with as large
a part of its block's feed-forward layer.

A head has the rows of queries, keys and values that make it, and the columns that read it where heads are joined; of
the feed-forward layer the rows that make its hidden units, and the columns that read them. What is there once for all
heads belongs to none: norms, biases that are added to the sum over heads, and of a LoRA adapter on queries, keys or
values the matrix A, whose outputs all heads read (its gradient is zero where training starts, since B is).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from fleetune.models.blocks import Block, Half
from fleetune.models.dense import Dense, Slice


@dataclass(frozen=True, slots=True)
class Head:
    """One subnet."""

    block: Block
    number: int
    slices: tuple[Slice, ...]
    """Its weights, each in one slice only."""

    @property
    def name(self) -> str:
        """`BLOCK#HEAD`."""
        return f"{self.block.name}#{self.number}"

    @property
    def fractions(self) -> Iterator[tuple[Half, Fraction]]:
        """How much of either half of its block is the head's."""
        for half in (self.block.attention, self.block.feed_forward):
            first, end = deal(half.outer.inputs, self.block.heads)[self.number]
            yield half, Fraction(end - first, half.outer.inputs)

    @property
    def layers(self) -> Iterator[tuple[Dense, Fraction]]:
        """Every dense layer of its block, and how much of it is the head's."""
        for half, fraction in self.fractions:
            yield from ((layer, fraction) for layer in half.layers)


def heads(blocks: tuple[Block, ...]) -> tuple[Head, ...]:
    """Every head of every block, block by block."""
    return tuple(Head(block, number, _slices(block, number)) for block in blocks for number in range(block.heads))


def deal(width: int, heads: int) -> tuple[tuple[int, int], ...]:
    """[first, end) of every head: as even as whole numbers can be, the first ones larger by one."""
    each, rest = divmod(width, heads)
    starts = [number * each + min(number, rest) for number in range(heads + 1)]
    return tuple(zip(starts, starts[1:], strict=False))


def _slices(block: Block, number: int) -> tuple[Slice, ...]:
    found: list[Slice] = []
    for half in (block.attention, block.feed_forward):
        for band in half.inner:
            first, end = deal(band.width, block.heads)[number]
            found += band.layer.rows(band.first + first, band.first + end)
        found += half.outer.columns(*deal(half.outer.inputs, block.heads)[number])
    return tuple(found)
