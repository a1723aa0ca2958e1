"""How the arguments of a recorded operation are written down, travel as JSON, and become values again.

Nothing is pickled and nothing is looked up outside torch: a graph that came over the network can only name
functions of torch and operator.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from fleetune.errors import Refused

HERE = torch.device("meta")  # stands for the device that runs the segment


@dataclass(frozen=True, slots=True)
class Ref:
    """The value that node `node` made."""

    node: int


@dataclass(frozen=True, slots=True)
class Size:
    """An integer expression of the batch size, such as `3*s0`."""

    expression: str


def references(argument: Any) -> Iterator[int]:
    """Every node that an argument refers to, in order."""
    if isinstance(argument, Ref):
        yield argument.node
    elif isinstance(argument, list | tuple):
        for item in argument:
            yield from references(item)
    elif isinstance(argument, dict):
        for item in argument.values():
            yield from references(item)
    elif isinstance(argument, slice):
        yield from references((argument.start, argument.stop, argument.step))


def to_json(argument: Any) -> Any:
    """An argument as JSON values; refuses what could not be rebuilt elsewhere."""
    if argument is None or isinstance(argument, bool | int | float | str):
        return argument
    if isinstance(argument, list):
        return [to_json(item) for item in argument]
    for kind, (key, write, _) in _TAGGED.items():
        if isinstance(argument, kind):
            return {key: write(argument)}
    raise Refused(f"model: an argument of type {type(argument).__name__} cannot be written into the graph")


def from_json(value: Any) -> Any:
    """The inverse of to_json."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or next(iter(value)) not in _READ:
        raise Refused(f"graph: {sorted(value)} is not an argument")
    key, inner = next(iter(value.items()))
    return _READ[key](inner)


def function(name: str) -> Callable[..., Any]:
    """The torch or operator function of a dotted name; nothing else can be named."""
    root, *path = name.split(".")
    found: Any = {"torch": torch, "operator": operator, "_operator": operator}.get(root)
    for part in path:
        if part.startswith("__") and not part.endswith("__"):
            found = None
        found = getattr(found, part, None)
    if found is None or not callable(found) or isinstance(found, type):
        raise Refused(f"graph: {name!r} is not a function of torch; the graph was made by another version or by nobody")
    return found  # type: ignore[no-any-return]


class Sizes:
    """Evaluates size expressions for one batch symbol, remembering what it has seen."""

    def __init__(self, symbol: str) -> None:
        self._symbol = sympy.Symbol(symbol, integer=True, positive=True)
        self._seen: dict[tuple[str, int], int] = {}

    def at(self, expression: str, batch: int) -> int:
        """The expression's value for a batch of that many samples."""
        key = (expression, batch)
        if key not in self._seen:
            parsed = sympy.parse_expr(expression, local_dict={self._symbol.name: self._symbol})
            self._seen[key] = int(parsed.subs(self._symbol, batch))
        return self._seen[key]


def bind(argument: Any, values: Mapping[int, Any], sizes: Sizes, batch: int) -> Any:
    """An argument with every Ref and Size replaced by what it stands for."""
    kind = type(argument)
    if kind is Ref:
        return values[argument.node]
    if kind is tuple:
        return tuple([bind(item, values, sizes, batch) for item in argument])
    if kind is list:
        return [bind(item, values, sizes, batch) for item in argument]
    if kind is dict:
        return {key: bind(item, values, sizes, batch) for key, item in argument.items()}
    if kind is Size:
        return sizes.at(argument.expression, batch)
    if kind is slice:
        return slice(*(bind(part, values, sizes, batch) for part in (argument.start, argument.stop, argument.step)))
    return argument


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise Refused(f"graph: {name!r} is not a dtype of torch")
    return found


# kind: (its key in JSON, how it is written, how it is read)
_TAGGED: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    Ref: ("$ref", lambda a: a.node, lambda v: Ref(int(v))),
    Size: ("$size", lambda a: a.expression, lambda v: Size(str(v))),
    slice: ("$slice", lambda a: [to_json(p) for p in (a.start, a.stop, a.step)], lambda v: slice(*map(from_json, v))),
    tuple: ("$tuple", lambda a: [to_json(p) for p in a], lambda v: tuple(map(from_json, v))),
    dict: ("$dict", lambda a: {k: to_json(p) for k, p in a.items()}, lambda v: {k: from_json(p) for k, p in v.items()}),
    torch.dtype: ("$dtype", lambda a: str(a).removeprefix("torch."), lambda v: _dtype(str(v))),
    torch.device: ("$device", lambda a: "here", lambda v: HERE),
    type(Ellipsis): ("$ellipsis", lambda a: 1, lambda v: Ellipsis),
}
_READ = {key: read for key, _, read in _TAGGED.values()}
