"""Divides the units of a model among its attention heads, the subnets of a profile.

Shares go by parameters of dense layers. A unit that is a dense layer is divided among heads. If a unit is a whole
block, its norms belong to no head. Units between the layers of one half of a block (the attention itself unless it is
folded into the output projection, and the activation of the feed-forward layer) hold no weights and are divided like
the layers around them.
"""

from fractions import Fraction

from torch import nn

from fleetune.contracts.subnet import SubnetPart
from fleetune.models import graph as g
from fleetune.models.attention_heads import AttentionHead, DenseLayer, HalfBlock
from fleetune.models.nf4 import elements_of
from fleetune.models.units import state_by_unit


class SubnetParts:
    """Divides the units of a model among its heads."""

    def __init__(self, graph: g.Graph, skeleton: nn.Module) -> None:
        sizes = {name: elements_of(parameter) for name, parameter in skeleton.named_parameters()}
        self._sizes = sizes
        self._of_unit = {
            unit: sum(sizes.get(name, 0) for name in names) for unit, names in state_by_unit(graph, skeleton).items()
        }
        self._modules = {
            unit.name: tuple(graph.node(n).target for n in unit.nodes if graph.node(n).kind == g.MODULE)
            for unit in graph.units
        }

    def of(self, head: AttentionHead) -> tuple[SubnetPart, ...]:
        """Parts of a head, in the order of units."""
        shares = dict.fromkeys(self._modules, Fraction(0))
        for layer, fraction in head.layers:
            size = sum(self._sizes[name] for name in layer.parameters)
            shares[self._unit(layer)] += fraction * size / self._of_unit[self._unit(layer)]
        for half, fraction in head.fractions:
            shares.update(dict.fromkeys(self._between(head, half), fraction))
        return tuple(SubnetPart(unit=unit, share=float(share)) for unit, share in shares.items() if share)

    def _unit(self, layer: DenseLayer) -> str:
        """Name of the unit that runs a layer."""
        return next(unit for unit, modules in self._modules.items() if any(_holds(m, layer.name) for m in modules))

    def _between(self, head: AttentionHead, half: HalfBlock) -> list[str]:
        """Units of the block that run after the first layer of a half and before its last, without any layer."""
        order = list(self._modules)
        places = sorted(order.index(self._unit(layer)) for layer in half.layers)
        taken = {self._unit(layer) for layer, _ in head.layers}
        return [
            unit
            for unit in order[places[0] : places[-1]]
            if unit not in taken and all(_holds(head.block.name, module) for module in self._modules[unit])
        ]


def _holds(outer: str, inner: str) -> bool:
    return inner == outer or inner.startswith(f"{outer}.")
