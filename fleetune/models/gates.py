"""Runs a plan's gates in a segment: heads run in full, forward only, or not at all in each micro-batch.

After Ding et al., "You Don't Need All Attentions" (D2FT), §II-A. The operations between queries, keys, values and the
layer that joins the heads, and those between the layers up and down, work on each head alone. They run for one group of
heads after the other, and the dense layers around them make, or read, only the group's heads. What the groups add to
the residual stream is added up. The rest of the block (norms, dropout, residual connections) runs as always.

A skipped head adds nothing to the residual stream. A forward-only group runs without gradients, and what it adds is a
constant to autograd. Norms, biases that are added to the sum over heads, and the matrix A of adapters that make heads
belong to no head: they act and are trained in every micro-batch in which a gradient reaches them, also in a block all
of whose heads are skipped.

Where a block's layers are units of their own, perhaps of several devices, values between layers keep their full width,
since they may cross a cut: a layer that makes heads writes zeros in the place of skipped ones, and a layer that adds
heads up reads only those that run. So the dense layers cost as much as their heads, but attention and activation
between them cost as much as ever, and messages are no smaller. Their random numbers are those of an ungated run.

A block runs as transformers wrote it in every micro-batch in which all of its heads are full, and where a run has no
random draws: evaluation uses all heads. In other micro-batches, random numbers are seeded for each part of the block
(full heads, forward-only heads, what follows), so that they are the same for equal seed, round, micro-batch, unit and
operations, however samples are dealt to devices, and no group of heads changes another's. They are not those of the
ungated block.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PretrainedConfig

from fleetune.contracts.plan import FORWARD_ONLY, FULL
from fleetune.errors import Refused
from fleetune.models import graph as g
from fleetune.models.attention_heads import TransformerBlock, attention_heads, find_blocks
from fleetune.models.block_program import ATTENTION, BlockProgram, Half, ProgramRecorder
from fleetune.models.graph import Node, RandomDraw
from fleetune.models.narrow_dense import Heads, NarrowLayer, heads_made, narrow_layer
from fleetune.models.operations import SizeEvaluator, bind_argument, references
from fleetune.models.randomness import PartDraws
from fleetune.models.segment import SegmentRunner


class HeadGroup(NamedTuple):
    """Heads that run together."""

    name: str
    heads: Heads
    is_full: bool

    def gradients(self) -> Any:
        """Return the context in which they run."""
        return contextlib.nullcontext() if self.is_full else torch.no_grad()


@dataclasses.dataclass(frozen=True, slots=True)
class GateTable:
    """Operations of a block's heads: for each head, one digit per micro-batch, as in a plan's gates."""

    rows: tuple[str, ...]

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches."""
        return len(self.rows[0])

    def is_gated(self, micro_batch: int) -> bool:
        """Return True if some head is not full in a micro-batch."""
        return any(row[micro_batch] != FULL for row in self.rows)

    def groups(self, micro_batch: int) -> tuple[HeadGroup, ...]:
        """Return the groups that run in a micro-batch, full heads first; none is empty."""
        found: list[HeadGroup] = []
        for name, operation in (("full", FULL), ("forward-only", FORWARD_ONLY)):
            heads = tuple(head for head, row in enumerate(self.rows) if row[micro_batch] == operation)
            found += [HeadGroup(name, heads, operation == FULL)] if heads else []
        return tuple(found)

    def sizes(self) -> set[int]:
        """Return every number of heads that a group has in some gated micro-batch."""
        gated = [number for number in range(self.micro_batches) if self.is_gated(number)]
        return {len(group.heads) for number in gated for group in self.groups(number)}


def with_last_size(draws: tuple[RandomDraw, ...], size: int) -> tuple[RandomDraw, ...]:
    """Return draws whose last dimension, that of features, has another size."""
    return tuple(dataclasses.replace(draw, shape=(*draw.shape[:-1], str(size))) for draw in draws)


Contribution = Callable[[HeadGroup, torch.Tensor | None], torch.Tensor]


def sum_of_groups(
    outer: NarrowLayer, groups: tuple[HeadGroup, ...], like: torch.Tensor, contribution: Contribution
) -> torch.Tensor:
    """Return what all groups add to the residual stream, with the layer's bias once.

    like: a tensor with the other dimensions of the result. contribution: runs a group; it is given the bias to add.
    """
    total: torch.Tensor | None = None
    for group in groups:
        with group.gradients():
            part = contribution(group, outer.base.bias if group.is_full else None)
        total = part if total is None else total.add_(part)
    if total is None:
        total = like.new_zeros((*like.shape[:-1], outer.output_size))
    bias_was_added = any(group.is_full for group in groups) or outer.base.bias is None
    return total if bias_was_added else total + outer.base.bias


class GatedByTable:
    """An operation of the recorded graph that runs the heads of its block as a table says."""

    def __init__(self, table: GateTable) -> None:
        self._table = table

    def follow(self, table: GateTable) -> None:
        """Run the heads as another table says, from now on."""
        self._table = table

    def applies(self, micro_batch: int) -> bool:
        """Return True if some head is not full in a micro-batch."""
        return self._table.is_gated(micro_batch)


class GatedLayer(GatedByTable):
    """A dense layer that is one operation of the recorded graph."""

    def __init__(self, layer: NarrowLayer, table: GateTable, node: Node, adds_up: bool) -> None:
        """node: its call in the recorded graph. adds_up: True for a layer that reads heads, False for one that makes
        them.
        """
        super().__init__(table)
        self._layer, self._node, self._adds_up = layer, node, adds_up
        (self._input,) = references(node.args)

    def run(self, held: Mapping[int, Any], samples: int, micro_batch: int, parts: PartDraws) -> torch.Tensor:
        """Return the layer's output, at its full width. held: values by node of the graph."""
        groups, given = self._table.groups(micro_batch), held[self._input]
        made = self._added_up(given, groups, parts) if self._adds_up else self._made(given, groups, parts)
        parts.start("joined")
        return made

    def _made(self, given: torch.Tensor, groups: tuple[HeadGroup, ...], parts: PartDraws) -> torch.Tensor:
        pieces = []
        for group in groups:
            parts.start(group.name)
            parts.expect(self._node.draws)
            with group.gradients():
                (made,) = heads_made([self._layer], given, group.heads)
                pieces.append((group.heads, self._layer.adapted(made, given, group.heads)))
        return self._layer.division.spread(pieces, given)

    def _added_up(self, given: torch.Tensor, groups: tuple[HeadGroup, ...], parts: PartDraws) -> torch.Tensor:
        def contribution(group: HeadGroup, bias: torch.Tensor | None) -> torch.Tensor:
            parts.start(group.name)
            own = self._layer.division.select(given, given.dim() - 1, group.heads)
            parts.expect(with_last_size(self._node.draws, own.shape[-1]))
            return self._layer.contribution(own, group.heads, bias)

        return sum_of_groups(self._layer, groups, given, contribution)


class GatedBlock(GatedByTable):
    """A block that is one operation of the recorded graph."""

    def __init__(self, program: BlockProgram, table: GateTable, module: nn.Module) -> None:
        """module: the block, whose weights are read in each run."""
        super().__init__(table)
        self._program, self._module = program, module
        self._whole = program.nodes[len(table.rows)]
        self._sizes = SizeEvaluator(program.batch)

    def run(self, held: Mapping[int, Any], samples: int, micro_batch: int, parts: PartDraws) -> Any:
        """Return what the block returns. held: values by node of the whole graph. samples: those of this device."""
        groups = self._table.groups(micro_batch)
        values: dict[int, Any] = {number: held[outside] for number, outside in self._program.inputs.items()}
        values.update({number: attrgetter(name)(self._module) for number, name in self._program.attributes.items()})
        for number, call, half in self._program.steps:
            if half is not None:
                values[number] = self._run_half(half, groups, values, samples, parts)
                parts.start(f"{half.name} joined")
            else:
                parts.expect(self._whole[number].draws)
                values[number] = self._called(call, self._whole[number], values, samples)
        return bind_argument(self._program.result, values, self._sizes, samples)

    def _run_half(
        self, half: Half, groups: tuple[HeadGroup, ...], values: dict[int, Any], samples: int, parts: PartDraws
    ) -> torch.Tensor:
        joined, outer = half.outer
        given = self._given(half.inner[0][0], values)

        def contribution(group: HeadGroup, bias: torch.Tensor | None) -> torch.Tensor:
            parts.start(f"{half.name} {group.name}")
            own, nodes = dict(values), self._program.nodes[len(group.heads)]
            made = heads_made([layer for _, layer in half.inner], given, group.heads)
            for (number, layer), outputs in zip(half.inner, made, strict=True):
                parts.expect(self._whole[number].draws)
                own[number] = layer.adapted(outputs, given, group.heads)
            width = outer.division.size_of(group.heads)
            for number, call in half.core:
                draws = nodes[number].draws
                parts.expect(draws if half.name == ATTENTION else with_last_size(draws, width))
                own[number] = self._called(call, nodes[number], own, samples)
            parts.expect(with_last_size(self._whole[joined].draws, width))
            return outer.contribution(self._given(joined, own), group.heads, bias)

        return sum_of_groups(outer, groups, given, contribution)

    def _given(self, number: int, values: Mapping[int, Any]) -> torch.Tensor:
        """Return the input of a dense layer."""
        given: torch.Tensor = values[self._whole[number].reads[0]]
        return given

    def _called(self, call: Any, node: Node, values: Mapping[int, Any], samples: int) -> Any:
        args, kwargs = bind_argument((node.args, node.kwargs), values, self._sizes, samples)
        return call(*args, **kwargs)


Regate = Callable[[Mapping[str, str]], None]
"""Makes a segment run its heads as other gates say, from now on: subnet -> one digit per micro-batch."""


def gate_segment(
    segment: SegmentRunner,
    gates: Mapping[str, str],
    skeleton: nn.Module,
    config: PretrainedConfig,
    *,
    changing: bool = False,
) -> Regate:
    """Make a segment run the heads of its blocks as `gates` say; heads without a gate are full.

    gates: subnet (BLOCK#HEAD) -> one digit per micro-batch, for the whole model. skeleton: the whole model on the meta
    device; the segment may have been made from it, but not loaded yet. changing: other gates will follow, so that all
    blocks are made ready for any of them. Returns what changes the gates, of as many micro-batches; without `changing`,
    only to gates by which groups have as many heads as now. Refused for a subnet that the model does not have, or a
    block whose heads cannot run separately.
    """
    blocks = find_blocks(segment.graph, skeleton, config)
    tables = gate_tables(gates, blocks, every=changing)
    made: dict[int, tuple[TransformerBlock, GatedLayer | GatedBlock]] = {}
    recorder = ProgramRecorder(segment.device)
    for number in (number for unit in segment.units for number in unit.nodes):
        node = segment.graph.node(number)
        for block, table in tables.items():
            sizes = set(range(1, block.heads)) if changing else table.sizes()
            gated = _gated(segment, node, block, table, (recorder, sizes)) if node.kind == g.MODULE else None
            if gated is not None:
                made[number] = (block, gated)
    segment.gate({number: gated for number, (_, gated) in made.items()})

    def regate(others: Mapping[str, str]) -> None:
        following = gate_tables(others, blocks, every=True)
        for block, gated in made.values():
            gated.follow(following[block])

    return regate


def _gated(
    segment: SegmentRunner,
    node: g.Node,
    block: TransformerBlock,
    table: GateTable,
    recording: tuple[ProgramRecorder, set[int]],
) -> GatedLayer | GatedBlock | None:
    """Return what runs instead of a call of a module; None for one that is neither the block nor one of its layers.

    recording: what records the block, and for which numbers of heads.
    """
    module = segment.modules[node.target]
    if node.target == block.name:
        recorder, sizes = recording
        program = recorder.record(block, module, (segment.graph, node), sizes)
        return GatedBlock(program, table, module)
    for half in (block.attention, block.feed_forward):
        for layer in half.layers:
            if layer.name == node.target:
                narrow = narrow_layer(half, layer, block.heads, module)
                return GatedLayer(narrow, table, node, adds_up=layer == half.outer)
    return None


def gate_tables(
    gates: Mapping[str, str], blocks: tuple[TransformerBlock, ...], *, every: bool = False
) -> dict[TransformerBlock, GateTable]:
    """Return the table of every block in which some head is not always full, or of `every` block.

    Refused for an unknown subnet.
    """
    heads = attention_heads(blocks)
    known = [head.name for head in heads]
    for name in gates:
        if name not in known:
            raise Refused(
                f"gate of {name}: the model has no such head; it has {known[0]} to {known[-1]}; profile and plan again"
            )
    always = FULL * max((len(row) for row in gates.values()), default=1)
    tables = {
        block: GateTable(tuple(gates.get(head.name, always) for head in heads if head.block == block))
        for block in blocks
    }
    return {
        block: table for block, table in tables.items() if every or any(map(table.is_gated, range(table.micro_batches)))
    }
