"""Installs a plan's gates in a segment (D2FT: full, forward-only and skip for each head and micro-batch).

A skipped head adds nothing to the residual stream. What a forward-only head adds is a constant: no gradient goes
through it. Norms, biases that are added to the sum over heads, and the matrix A of adapters that make heads belong to
no head: they act and are trained in every micro-batch in which a gradient reaches them, also in a block all of whose
heads are skipped.

A block runs as transformers wrote it in every micro-batch in which all of its heads are full, and where a run has no
random draws: evaluation uses all heads. In other micro-batches, random numbers are seeded for each part of the block
(full heads, forward-only heads, what follows), so that they are the same for equal seed, round, micro-batch, unit and
operations, however samples are dealt to devices, and no group of heads changes another's. They are not those of the
ungated block.
"""

from collections.abc import Mapping

from torch import nn
from transformers import PretrainedConfig

from fleetune.contracts.plan import FULL
from fleetune.errors import Refused
from fleetune.models import graph as g
from fleetune.models.attention_heads import TransformerBlock, attention_heads, find_blocks
from fleetune.models.block_program import ProgramRecorder
from fleetune.models.gated_blocks import GatedBlock
from fleetune.models.gated_layers import GatedLayer
from fleetune.models.head_groups import GateTable
from fleetune.models.narrow_dense import narrow_layer
from fleetune.models.segment import GatedOperation, SegmentRunner


def gate_segment(
    segment: SegmentRunner, gates: Mapping[str, str], skeleton: nn.Module, config: PretrainedConfig
) -> None:
    """Make a segment run the heads of its blocks as `gates` say; heads without a gate are full.

    gates: subnet (BLOCK#HEAD) -> one digit per micro-batch, for the whole model. skeleton: the whole model on the meta
    device; the segment may have been made from it, but not loaded yet. Refused for a subnet that the model does not
    have, or a block whose heads cannot run separately.
    """
    tables = gate_tables(gates, find_blocks(segment.graph, skeleton, config))
    operations: dict[int, GatedOperation] = {}
    recorder = ProgramRecorder(segment.device)
    for number in (number for unit in segment.units for number in unit.nodes):
        node = segment.graph.node(number)
        for block, table in tables.items():
            gated = _gated(segment, node, block, table, recorder) if node.kind == g.MODULE else None
            if gated is not None:
                operations[number] = gated
    segment.gate(operations)


def _gated(
    segment: SegmentRunner, node: g.Node, block: TransformerBlock, table: GateTable, recorder: ProgramRecorder
) -> GatedOperation | None:
    """Return what runs instead of a call of a module; None for one that is neither the block nor one of its layers."""
    module = segment.modules[node.target]
    if node.target == block.name:
        program = recorder.record(block, module, (segment.graph, node), table.sizes())
        return GatedBlock(program, table, module)
    for half in (block.attention, block.feed_forward):
        for layer in half.layers:
            if layer.name == node.target:
                narrow = narrow_layer(half, layer, block.heads, module)
                return GatedLayer(narrow, table, node, adds_up=layer == half.outer)
    return None


def gate_tables(gates: Mapping[str, str], blocks: tuple[TransformerBlock, ...]) -> dict[TransformerBlock, GateTable]:
    """Return the table of every block in which some head is not always full. Refused for an unknown subnet."""
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
    return {block: table for block, table in tables.items() if any(map(table.is_gated, range(table.micro_batches)))}
