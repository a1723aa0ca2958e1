"""How the arguments of a recorded operation are written down, travel as JSON, and become values again.

Nothing is pickled and no code is looked up here: what a graph may call is in `allowed`, what sizes it may ask for in
`sizes`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fleetune.errors import Refused
from fleetune.models.sizes import Sizes

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
    if isinstance(argument, float) and not math.isfinite(argument):
        return {"$float": str(argument)}  # JSON has no word for it
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
    try:
        return _READ[key](inner)
    except Refused:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise Refused(f"graph: {inner!r} cannot be read as {key} ({error})") from None


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


def _of_torch(name: str, kind: type) -> Any:
    """The dtype, memory format or layout of that name."""
    found = getattr(torch, name, None)
    if not isinstance(found, kind):
        raise Refused(f"graph: {name!r} is not a {kind.__name__} of torch")
    return found


def _plain(argument: Any) -> str:
    return str(argument).removeprefix("torch.")


def _texts(items: dict[Any, Any]) -> dict[str, Any]:
    odd = [key for key in items if not isinstance(key, str)]
    if odd:
        raise Refused(f"model: a dictionary with the key {odd[0]!r} cannot be written into the graph; keys are texts")
    return {key: to_json(item) for key, item in items.items()}


# kind: (its key in JSON, how it is written, how it is read)
_TAGGED: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    Ref: ("$ref", lambda a: a.node, lambda v: Ref(int(v))),
    Size: ("$size", lambda a: a.expression, lambda v: Size(str(v))),
    slice: ("$slice", lambda a: [to_json(p) for p in (a.start, a.stop, a.step)], lambda v: slice(*map(from_json, v))),
    tuple: ("$tuple", lambda a: [to_json(p) for p in a], lambda v: tuple(map(from_json, v))),
    dict: ("$dict", _texts, lambda v: {k: from_json(p) for k, p in v.items()}),
    torch.dtype: ("$dtype", _plain, lambda v: _of_torch(str(v), torch.dtype)),
    torch.memory_format: ("$memory_format", _plain, lambda v: _of_torch(str(v), torch.memory_format)),
    torch.layout: ("$layout", _plain, lambda v: _of_torch(str(v), torch.layout)),
    torch.device: ("$device", lambda a: "here", lambda v: HERE),
    type(Ellipsis): ("$ellipsis", lambda a: 1, lambda v: Ellipsis),
}
_READ = {key: read for key, _, read in _TAGGED.values()} | {"$float": lambda v: float(str(v))}
