"""Blocks whose heads run in full, forward only, or not at all in each micro-batch (Ding et al., "You Don't Need All
Attentions", §II-A).

The operations between queries, keys, values and the layer that joins the heads, and those between the layers up and
down, work on each head alone. They run for one group of heads after the other, and the dense layers around them make,
or read, only the group's heads. What the groups add to the residual stream is added up. The rest of the block (norms,
dropout, residual connections) runs as always.
"""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from fleetune.models.block_program import ATTENTION, BlockProgram, Half
from fleetune.models.graph import Node
from fleetune.models.head_groups import GateTable, HeadGroup, sum_of_groups, with_last_size
from fleetune.models.narrow_dense import heads_made
from fleetune.models.operations import SizeEvaluator, bind_argument
from fleetune.models.randomness import PartDraws


class GatedBlock:
    """A block that is one operation of the recorded graph."""

    def __init__(self, program: BlockProgram, table: GateTable, module: nn.Module) -> None:
        """module: the block, whose weights are read in each run."""
        self._program, self._table, self._module = program, table, module
        self._whole = program.nodes[len(table.rows)]
        self._sizes = SizeEvaluator(program.batch)

    def applies(self, micro_batch: int) -> bool:
        """Return True if some head is not full in a micro-batch."""
        return self._table.is_gated(micro_batch)

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
