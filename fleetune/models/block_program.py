"""The operations of a transformer block, recorded one by one for several numbers of heads.

The operations for a number of heads are what transformers' own code does when its dense layers have so many, so sizes
that it works out for itself are right. Dense layers of heads are NarrowLayers, given their heads by whoever runs them.
"""

import contextlib
import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from fleetune.errors import Refused
from fleetune.models import graph as g
from fleetune.models.attention_heads import HalfBlock, TransformerBlock
from fleetune.models.graph import Graph, Node, Value
from fleetune.models.meta_run import without_device
from fleetune.models.narrow_dense import Heads, NarrowLayer, heads_made, narrow_layer
from fleetune.models.operations import SizeEvaluator, on_device
from fleetune.models.recorder import record_call
from fleetune.models.recording import StandIn
from fleetune.models.segment import executable
from fleetune.models.units import leaf_modules

ATTENTION, FEED_FORWARD = "attention", "feed-forward"
FUSED_WIDTH = "split_size"
"""Attribute of transformers' GPT-2: the width of the queries that its fused layer makes."""


class Half(NamedTuple):
    """The operations of half a block that run for each group of heads; numbers are those of nodes."""

    name: str
    inner: tuple[tuple[int, NarrowLayer], ...]
    """Layers that make heads."""
    core: tuple[tuple[int, Any], ...]
    """Calls between these and the layer that adds heads up."""
    outer: tuple[int, NarrowLayer]


class Step(NamedTuple):
    """One call of the rest of the block, or a half, which stands where its outer layer does."""

    number: int
    call: Any
    half: Half | None


class BlockProgram(NamedTuple):
    """A recorded block."""

    batch: str
    """Name of the batch symbol in sizes."""
    inputs: dict[int, int]
    """Node of an input -> node of the whole model's graph whose value it is."""
    attributes: dict[int, str]
    """Node of a parameter or buffer that is read directly -> its name in the block."""
    steps: tuple[Step, ...]
    nodes: dict[int, dict[int, Node]]
    """Number of heads -> nodes by number. Only nodes of the attention's core differ in their arguments."""
    result: Any
    """What the block returns: NodeRefs in tuples, lists and dictionaries."""


class _Recording(NamedTuple):
    graph: Graph
    result: Any


class ProgramRecorder:
    """Records the blocks of a model.

    A block is recorded once for all of its heads. For fewer heads, it is recorded unless an earlier block of the same
    class has run the same operations on all of its heads: then it has that one's.
    """

    def __init__(self, device: torch.device) -> None:
        """device: runs the operations."""
        self._device = device
        self._recorded: list[tuple[type[nn.Module], _Recording, dict[int, dict[int, Node]]]] = []

    def record(
        self, block: TransformerBlock, module: nn.Module, call: tuple[Graph, Node], sizes: Iterable[int]
    ) -> BlockProgram:
        """Record a block for all of its heads, and for each number of heads in `sizes`.

        module: the block. call: the whole model's graph and its node that calls the block. Refused for a block whose
        operations cannot be divided by heads.
        """
        try:
            layers = _Layers(block, module)
            whole = layers.record(call, block.heads, self._device)
            halves = [_half(name, layers, module, whole.graph) for name in (ATTENTION, FEED_FORWARD)]
            nodes = self._nodes_like(module, whole)
            nodes.setdefault(block.heads, {node.id: node for node in whole.graph.nodes})
            for heads in sorted(set(sizes) - set(nodes)):
                narrowed = layers.record(call, heads, self._device).graph
                core = {number for number, _ in halves[0].core}
                found = _alike(whole.graph, narrowed, core)
                _check_shares(whole.graph, found, core, Fraction(heads, block.heads))
                nodes[heads] = found
        except Refused as error:
            raise Refused(f"gates: the heads of {block.name} cannot run one by one ({error})") from None
        return BlockProgram(
            batch=whole.graph.batch,
            inputs={number: int(name) for name, number in whole.graph.inputs.items()},
            attributes={node.id: node.target for node in whole.graph.nodes if node.kind == g.ATTRIBUTE},
            steps=_steps(whole.graph, module, halves),
            nodes=nodes,
            result=whole.result,
        )

    def _nodes_like(self, module: nn.Module, whole: _Recording) -> dict[int, dict[int, Node]]:
        """Return number of heads -> nodes of all blocks that are recorded like this one; empty for the first."""
        for kind, recorded, nodes in self._recorded:
            if kind is type(module) and _spelled(recorded) == _spelled(whole):
                return nodes
        self._recorded.append((type(module), whole, {}))
        return self._recorded[-1][2]


def _spelled(recorded: _Recording) -> tuple[Any, ...]:
    """Return all that a recording holds but the names of its inputs."""
    graph = recorded.graph
    nodes = [dataclasses.replace(node, target="") if node.kind == g.INPUT else node for node in graph.nodes]
    return graph.batch, nodes, list(graph.inputs.values()), recorded.result


class _Layers:
    """The dense layers of a block, by their names within it, for each half."""

    def __init__(self, block: TransformerBlock, module: nn.Module) -> None:
        self._module = module
        self.inner: dict[str, dict[str, NarrowLayer]] = {}
        self.outer: dict[str, tuple[str, NarrowLayer]] = {}
        for name, half in ((ATTENTION, block.attention), (FEED_FORWARD, block.feed_forward)):
            *inner, outer = self._of(half, block).items()
            self.inner[name], self.outer[name] = dict(inner), outer

    def _of(self, half: HalfBlock, block: TransformerBlock) -> dict[str, NarrowLayer]:
        found = {layer.name.removeprefix(f"{block.name}."): layer for layer in half.layers}
        return {
            name: narrow_layer(half, layer, block.heads, self._module.get_submodule(name))
            for name, layer in found.items()
        }

    def record(self, call: tuple[Graph, Node], heads: int, device: torch.device) -> _Recording:
        """Record the block as if it had only the first `heads` of its heads."""
        first = tuple(range(heads))
        stand_ins: dict[str, StandIn] = {}
        for half, (name, outer) in self.outer.items():
            for inner, layer in self.inner[half].items():
                stand_ins[inner] = partial(_made, layer, first)
            stand_ins[name] = partial(outer.contribution, heads=first, bias=None)
        with self._fused_width(heads):
            recorded = record_call(self._module, *call, leaf_modules(self._module, "layer"), stand_ins)
        found = without_device(recorded.graph)
        nodes = []
        for node in found.nodes:
            args, kwargs = on_device((node.args, node.kwargs), device)
            nodes.append(dataclasses.replace(node, args=args, kwargs=kwargs))
        return _Recording(dataclasses.replace(found, nodes=tuple(nodes)), recorded.result)

    @contextlib.contextmanager
    def _fused_width(self, heads: int) -> Iterator[None]:
        """Set the width that a module holds by which it splits a fused layer's output, for so many heads."""
        changed: list[tuple[Any, int]] = []
        for name, layer in self.inner[ATTENTION].items():
            division, owner = layer.division, self._module.get_submodule(name.rpartition(".")[0])
            if division.stretches > 1 and getattr(owner, FUSED_WIDTH, None) == division.width:
                changed.append((owner, division.width))
                setattr(owner, FUSED_WIDTH, division.width // division.heads * heads)
        try:
            yield
        finally:
            for owner, width in changed:
                setattr(owner, FUSED_WIDTH, width)


def _made(layer: NarrowLayer, heads: Heads, given: torch.Tensor) -> torch.Tensor:
    return layer.adapted(heads_made([layer], given, heads)[0], given, heads)


def _half(name: str, layers: _Layers, module: nn.Module, graph: Graph) -> Half:
    """Return a half's operations. Refused if what heads make is read behind the layer that adds them up."""
    called = {node.target: node.id for node in graph.nodes if node.kind == g.MODULE}
    inner = tuple((called[target], layer) for target, layer in layers.inner[name].items())
    target, outer = layers.outer[name]
    reached = {number for number, _ in inner}
    core: list[tuple[int, Any]] = []
    for node in graph.nodes:
        if reached.isdisjoint(node.reads) or node.id == called[target]:
            continue
        if node.id > called[target]:
            raise Refused(f"{node.target} reads what single heads of the {name} make")
        reached.add(node.id)
        core.append((node.id, executable(node, module)))
    return Half(name, inner, tuple(core), (called[target], outer))


def _steps(graph: Graph, module: nn.Module, halves: list[Half]) -> tuple[Step, ...]:
    ends = {half.outer[0]: half for half in halves}
    within = {number for half in halves for number, _ in (*half.inner, *half.core)}
    return tuple(
        Step(node.id, None if node.id in ends else executable(node, module), ends.get(node.id))
        for node in graph.nodes
        if node.kind not in (g.INPUT, g.ATTRIBUTE) and node.id not in within
    )


def _check_shares(whole: Graph, narrowed: Mapping[int, Node], core: Collection[int], share: Fraction) -> None:
    """Refused: an operation between heads makes more or less of some of them than their share of what it makes of all,
    as where a number of heads is written down in the block and their values are divided anew by it."""
    sizes = SizeEvaluator(whole.batch)
    for node in whole.nodes:
        made, narrow = node.value, narrowed[node.id].value
        if node.id not in core or made is None or narrow is None:
            continue
        if _elements(narrow, sizes) != share * _elements(made, sizes):
            raise Refused(f"what {node.target} makes of some heads is not their share of what it makes of all")


def _elements(value: Value, sizes: SizeEvaluator) -> int:
    """Return the elements of a value for two samples, as a size may hold for no fewer."""
    return math.prod(sizes.evaluate(size, 2) for size in value.shape)


def _alike(whole: Graph, narrowed: Graph, may_differ: set[int]) -> dict[int, Node]:
    """Return the nodes of a block that was recorded with fewer heads.

    Refused if they are other operations than the whole block's, or if nodes outside `may_differ` have other arguments.
    """
    spelled: list[list[Any]] = [[(n.id, n.kind, n.target) for n in graph.nodes] for graph in (whole, narrowed)]
    if spelled[0] != spelled[1]:
        raise Refused("what it runs depends on the number of heads")
    for before, after in zip(whole.nodes, narrowed.nodes, strict=True):
        if before.id not in may_differ and (before.args, before.kwargs) != (after.args, after.kwargs):
            raise Refused(f"what it gives to {before.target} depends on the number of heads")
    return {node.id: node for node in narrowed.nodes}
