"""A model as a list of recorded operations, with the values that each one reads and makes.

The graph holds no weights and no code. Its nodes are in the order in which the model ran them; `units` groups
consecutive nodes.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field

from fleetune.contracts import json_io
from fleetune.contracts.mixed_precision import HALF
from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.models.operations import argument_from_json, argument_to_json, references

INPUT, ATTRIBUTE, MODULE, FUNCTION, ITEM = "input", "attribute", "module", "function", "item"
KINDS = (INPUT, ATTRIBUTE, MODULE, FUNCTION, ITEM)


@record
class Value:
    """A tensor that a node makes."""

    shape: tuple[str, ...]
    """Each size is an integer or an expression of the batch symbol."""
    dtype: str
    gradient: bool
    """True if the loss has a gradient with respect to the tensor."""


@record
class RandomDraw:
    """A random tensor that an operation draws in training, such as a dropout mask."""

    shape: tuple[str, ...]
    """As in Value."""
    order: tuple[int, ...]
    """Dimensions from the outermost to the innermost in memory, the order in which numbers are drawn."""

    def divided(self, batch: str) -> tuple[int, ...] | None:
        """Return the dimension that counts samples, in a tuple that is empty where all devices draw the same; None if
        the draw cannot be divided by samples. batch: the batch symbol."""
        dims = tuple(dim for dim, size in enumerate(self.shape) if not size.isdigit())
        return dims if len(dims) <= 1 and all(self.shape[dim] == batch for dim in dims) else None


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: an input, a parameter read directly, a call of a leaf module or of a torch function, or one
    item of what such a call returned."""

    id: int
    kind: str
    target: str
    """Input name, parameter name, module name, function name, or the item's position."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    value: Value | None
    """None for a call that returns several tensors; its items have them."""
    draws: tuple[RandomDraw, ...] = ()
    """Random tensors that the operation draws, in order."""

    @property
    def reads(self) -> tuple[int, ...]:
        """Nodes that this one reads, in order of appearance."""
        return tuple(dict.fromkeys(references((self.args, self.kwargs))))


@record
class _NodeRecord:
    id: int
    kind: str
    target: str
    args: list[Any]
    kwargs: dict[str, Any]
    value: Value | None
    draws: Annotated[tuple[RandomDraw, ...], Field(exclude_if=lambda value: not value)] = ()


@record
class GraphUnit:
    """Consecutive nodes that run together."""

    name: str
    nodes: tuple[int, ...]


@record
class _GraphRecord:
    batch: str
    output: int
    inputs: dict[str, int]
    nodes: tuple[_NodeRecord, ...]
    units: tuple[GraphUnit, ...]
    compute: Annotated[str, Field(exclude_if=lambda value: not value)] = ""


@dataclass(frozen=True)
class Graph:
    """The recorded model."""

    batch: str
    """Name of the batch symbol in shapes."""
    inputs: dict[str, int]
    """Input name -> node."""
    output: int
    """The node whose value goes into the loss."""
    nodes: tuple[Node, ...]
    units: tuple[GraphUnit, ...]
    compute: str = ""
    """The type that forward and backward compute in, such as bfloat16; empty: the weights' own."""

    def node(self, number: int) -> Node:
        """Return the node of that number (numbers need not be dense)."""
        return self._by_id[number]

    @cached_property
    def _by_id(self) -> dict[int, Node]:
        return {node.id: node for node in self.nodes}

    def value(self, number: int) -> Value:
        """Return the tensor that a node makes; Refused for a node that makes several."""
        value = self.node(number).value
        if value is None:
            raise Refused(f"graph: node {number} makes several tensors; only its items can cross a cut")
        return value

    def batched(self, number: int) -> bool | None:
        """Return True if the first dimension is samples, False if the value has none, None if it cannot be divided."""
        node = self.node(number)
        if node.value is None:
            return None
        shape = node.value.shape
        if not any(self.batch in size for size in shape):
            return False
        if shape[0] == self.batch and not any(self.batch in size for size in shape[1:]):
            return True
        return None


def graph_text(graph: Graph) -> str:
    """Return the graph as JSON text."""
    nodes = tuple(
        _NodeRecord(
            id=n.id,
            kind=n.kind,
            target=n.target,
            args=[argument_to_json(a) for a in n.args],
            kwargs={k: argument_to_json(a) for k, a in n.kwargs.items()},
            value=n.value,
            draws=n.draws,
        )
        for n in graph.nodes
    )
    return json_io.text(
        _GraphRecord(
            batch=graph.batch,
            output=graph.output,
            inputs=graph.inputs,
            nodes=nodes,
            units=graph.units,
            compute=graph.compute,
        )
    )


def parse_graph(text: str | bytes, owner: str) -> Graph:
    """Parse a graph from JSON text; Refused if malformed, naming `owner`."""
    plain = json_io.parse(_GraphRecord, text, owner)
    nodes = tuple(
        Node(
            id=n.id,
            kind=n.kind,
            target=n.target,
            args=tuple(argument_from_json(a) for a in n.args),
            kwargs={k: argument_from_json(a) for k, a in n.kwargs.items()},
            value=n.value,
            draws=n.draws,
        )
        for n in plain.nodes
    )
    graph = Graph(
        batch=plain.batch,
        inputs=plain.inputs,
        output=plain.output,
        nodes=nodes,
        units=plain.units,
        compute=plain.compute,
    )
    _validate(graph, owner)
    return graph


def _validate(graph: Graph, owner: str) -> None:
    """Refuse a graph whose nodes, units, inputs or output are inconsistent."""
    if graph.compute not in ("", *HALF.values()):
        raise Refused(f"{owner}: compute is {graph.compute!r}; allowed are {', '.join(HALF.values())}")
    known: set[int] = set()
    for node in graph.nodes:
        if node.kind not in KINDS:
            raise Refused(f"{owner}: node {node.id} is of kind {node.kind!r}; allowed are {', '.join(KINDS)}")
        if node.id in known or not known.issuperset(node.reads):
            raise Refused(f"{owner}: node {node.id} occurs twice, or reads a node that does not precede it")
        known.add(node.id)
    named = {graph.output, *graph.inputs.values(), *(n for unit in graph.units for n in unit.nodes)}
    if not known.issuperset(named) or any(not unit.nodes for unit in graph.units):
        raise Refused(f"{owner}: a unit, an input or the output names a node that is not there")
