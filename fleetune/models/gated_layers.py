"""Dense layers of a gated block whose layers are units of their own, perhaps of several devices.

Values between layers keep their full width, since they may cross a cut: a layer that makes heads writes zeros in the
place of skipped ones, and a layer that adds heads up reads only those that run. So the dense layers cost as much as
their heads, but attention and activation between them cost as much as ever, and messages are no smaller. Their random
numbers are those of an ungated run.
"""

from collections.abc import Mapping
from typing import Any

import torch

from fleetune.models.graph import Node
from fleetune.models.head_groups import GateTable, HeadGroup, sum_of_groups, with_last_size
from fleetune.models.narrow_dense import NarrowLayer, heads_made
from fleetune.models.operations import references
from fleetune.models.randomness import PartDraws


class GatedLayer:
    """A dense layer that is one operation of the recorded graph."""

    def __init__(self, layer: NarrowLayer, table: GateTable, node: Node, adds_up: bool) -> None:
        """node: its call in the recorded graph. adds_up: True for a layer that reads heads, False for one that makes
        them.
        """
        self._layer, self._table, self._node, self._adds_up = layer, table, node, adds_up
        (self._input,) = references(node.args)

    def applies(self, micro_batch: int) -> bool:
        """Return True if some head is not full in a micro-batch."""
        return self._table.is_gated(micro_batch)

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
