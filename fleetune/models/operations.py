"""Operations of a recorded graph: which torch functions it may call, and how arguments and sizes travel as JSON.

Nothing is pickled and no code is evaluated. The list of functions is made from what torch itself declares replaceable
by tensor-like types, less everything that changes a tensor in place, reaches memory, files or other devices, or
installs code. torch.load, torch.hub, torch.jit and their like were never on it.
"""

import ast
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.overrides import get_overridable_functions, resolve_name

from fleetune.errors import Refused

Function = Callable[..., Any]
FACTORIES = (
    "arange", "as_tensor", "empty", "eye", "full", "linspace", "logspace", "normal", "ones", "rand", "rand_like",
    "randint", "randint_like", "randn", "randn_like", "randperm", "scalar_tensor", "tensor", "tril_indices",
    "triu_indices", "zeros", "as_strided",
    "Tensor.new_empty", "Tensor.new_full", "Tensor.new_ones", "Tensor.new_tensor", "Tensor.new_zeros",
)  # fmt: skip
NAMESPACES = (
    "torch", "torch.functional", "torch.nn.functional", "torch.Tensor", "torch.linalg", "torch.fft", "torch.special",
)  # fmt: skip
REFLECTED_OPERATORS = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift",
)  # fmt: skip
PLAIN_OPERATORS = ("getitem", "invert", "eq", "ne", "lt", "le", "gt", "ge", "neg", "abs", "div")
OPERATORS = {
    f"__{name}__" for name in (*REFLECTED_OPERATORS, *(f"r{name}" for name in REFLECTED_OPERATORS), *PLAIN_OPERATORS)
}
EXCLUDED = {
    "backward", "const_data_ptr", "cpu", "cuda", "data_ptr", "ipu", "item", "module_load", "mtia", "numpy",
    "pin_memory", "record_stream", "register_hook", "register_post_accumulate_grad_hook", "resize", "resize_as",
    "retain_grad", "storage", "storage_type", "tolist", "untyped_storage", "xpu",
}  # fmt: skip
WITH_ITEM, AT_MARK = "with_item", "at_mark"
"""Names of the two functions of a graph that torch does not have."""
LONGEST_CHARACTERS = 400
HIGHEST_POWER = 8
LARGEST = 1 << 62


def torch_function(name: str) -> Function:
    """Return the torch function of a dotted name; Refused if it is not on the list of allowed functions."""
    found = _allowed_functions().get(name)
    if found is None:
        raise Refused(
            f"graph: {name!r} is not a torch function that a graph may name; allowed are pure functions of tensors"
        )
    return found


def is_allowed(name: str) -> bool:
    """Return whether the function of a dotted name is on the list of allowed functions."""
    return name in _allowed_functions()


@functools.cache
def _allowed_functions() -> dict[str, Function]:
    found: dict[str, Function] = {}
    for functions in get_overridable_functions().values():
        for made in functions:
            name = resolve_name(made)
            if name is not None and callable(made) and not isinstance(made, type) and _is_pure(name):
                found[name] = made
    for factory in FACTORIES:
        owner: Any = torch
        for part in factory.split("."):
            owner = getattr(owner, part)
        found[f"torch.{factory}"] = owner
    found |= {WITH_ITEM: with_item, AT_MARK: at_mark}
    return found


def with_item(tensor: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """Return a copy of a tensor in which `tensor[index]` is `value`: item assignment as a pure function."""
    changed = tensor.clone()
    changed[index] = value
    return changed


def at_mark(tensor: torch.Tensor, mark: torch.Tensor) -> torch.Tensor:
    """Return `tensor[mark, :]`, where `mark` is true once in each row; Refused if it is not.

    tensor [samples, tokens, width], mark [samples, tokens]; the result is [samples, width], which without that
    condition would depend on the data. Classifiers such as BART's read the end token so.
    """
    if tensor.is_meta or is_fake(tensor):
        return tensor[:, 0]
    found = mark.sum(1)
    if not bool((found == 1).all()):
        raise Refused(
            f"model: it reads the one end token of each text, but a text has {int(found[found != 1][0])}; give texts "
            "that end with the end token (a tokenizer of the model's own adds it), and that do not contain it"
        )
    return tensor[mark, :]


def _is_pure(name: str) -> bool:
    namespace, last = name.rsplit(".", 1)
    if last.startswith("__"):
        return namespace == "torch.Tensor" and last in OPERATORS
    return namespace in NAMESPACES and not last.startswith("_") and not last.endswith("_") and last not in EXCLUDED


Number = Fraction
_BINARY: dict[type, Callable[[Number, Number], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: lambda a, b: _power(a, b),
}
_CALLS: dict[str, Callable[..., Any]] = {
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": lambda a, b: -(-a // b),
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Max": max,
    "Min": min,
}


class SizeEvaluator:
    """Evaluates integer expressions of the batch size, such as `3*s0` or `(s0//2)`, without evaluating code.

    Allowed are integers, the batch symbol, + - * / // % **, brackets, and FloorDiv, CleanDiv, CeilDiv, Mod, PythonMod,
    Max and Min; anything else is Refused. Results are cached.
    """

    def __init__(self, symbol: str) -> None:
        self._symbol = symbol
        self._seen: dict[tuple[str, int], int] = {}

    def evaluate(self, expression: str, batch: int) -> int:
        """Return the expression's value for a batch of that many samples."""
        key = (expression, batch)
        if key not in self._seen:
            self._seen[key] = self._evaluate(expression, batch)
        return self._seen[key]

    def _evaluate(self, expression: str, batch: int) -> int:
        try:
            if len(expression) > LONGEST_CHARACTERS:
                raise ValueError("too long")
            value = self._value(ast.parse(expression, mode="eval").body, Fraction(batch))
        except (ValueError, SyntaxError, TypeError, ZeroDivisionError, RecursionError, MemoryError) as error:
            raise Refused(
                f"graph: {expression[:80]!r} is no integer expression of {self._symbol} ({error}); "
                "record the model again"
            ) from None
        if value.denominator != 1:
            raise Refused(f"graph: {expression!r} is no whole number for {self._symbol} = {batch}")
        return int(value)

    def _value(self, node: ast.AST, batch: Number) -> Number:
        value = self._unbounded(node, batch)
        if abs(value) > LARGEST:
            raise ValueError("too large")
        return value

    def _unbounded(self, node: ast.AST, batch: Number) -> Number:
        match node:
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                return Fraction(number)
            case ast.Name(id=self._symbol):
                return batch
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._value(operand, batch)
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
                return Fraction(_BINARY[type(sign)](self._value(left, batch), self._value(right, batch)))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _CALLS:
                return Fraction(_CALLS[name](*(self._value(a, batch) for a in args)))
        raise ValueError(f"{type(node).__name__} is not allowed")


def _power(base: Number, exponent: Number) -> Number:
    if exponent.denominator != 1 or not 0 <= exponent <= HIGHEST_POWER:
        raise ValueError(f"powers are 0 to {HIGHEST_POWER}")
    return Fraction(base ** int(exponent))


RUN_DEVICE = torch.device("meta")  # in a recorded call: whichever device runs the segment


def on_device(argument: Any, device: torch.device) -> Any:
    """Return the argument with RUN_DEVICE, as it was recorded, replaced by the device that runs it."""
    if isinstance(argument, torch.device) and argument == RUN_DEVICE:
        return device
    if isinstance(argument, tuple):
        return tuple(on_device(item, device) for item in argument)
    if isinstance(argument, list):
        return [on_device(item, device) for item in argument]
    if isinstance(argument, dict):
        return {key: on_device(item, device) for key, item in argument.items()}
    return argument


@dataclass(frozen=True, slots=True)
class NodeRef:
    """Reference to the value of node `node`."""

    node: int


@dataclass(frozen=True, slots=True)
class SizeExpression:
    """An integer expression of the batch size, such as `3*s0`."""

    expression: str


def references(argument: Any) -> Iterator[int]:
    """Yield every node that an argument refers to, in order."""
    if isinstance(argument, NodeRef):
        yield argument.node
    elif isinstance(argument, list | tuple):
        for item in argument:
            yield from references(item)
    elif isinstance(argument, dict):
        for item in argument.values():
            yield from references(item)
    elif isinstance(argument, slice):
        yield from references((argument.start, argument.stop, argument.step))


def argument_to_json(argument: Any) -> Any:
    """Return an argument as JSON values; Refused for types that cannot be rebuilt on another machine."""
    if isinstance(argument, float) and not math.isfinite(argument):
        return {"$float": str(argument)}  # JSON cannot express it
    if argument is None or isinstance(argument, bool | int | float | str):
        return argument
    if isinstance(argument, list):
        return [argument_to_json(item) for item in argument]
    for kind, (key, write, _) in _TAGGED.items():
        if isinstance(argument, kind):
            return {key: write(argument)}
    raise Refused(f"model: an argument of type {type(argument).__name__} cannot be written into the graph")


def argument_from_json(value: Any) -> Any:
    """Return the argument that `argument_to_json` wrote; Refused if malformed."""
    if isinstance(value, list):
        return [argument_from_json(item) for item in value]
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


def bind_argument(argument: Any, values: Mapping[int, Any], sizes: SizeEvaluator, batch: int) -> Any:
    """Return an argument with every NodeRef and SizeExpression replaced by its value."""
    kind = type(argument)
    if kind is NodeRef:
        return values[argument.node]
    if kind is tuple:
        return tuple([bind_argument(item, values, sizes, batch) for item in argument])
    if kind is list:
        return [bind_argument(item, values, sizes, batch) for item in argument]
    if kind is dict:
        return {key: bind_argument(item, values, sizes, batch) for key, item in argument.items()}
    if kind is SizeExpression:
        return sizes.evaluate(argument.expression, batch)
    if kind is slice:
        return slice(
            *(bind_argument(part, values, sizes, batch) for part in (argument.start, argument.stop, argument.step))
        )
    return argument


def _of_torch(name: str, kind: type) -> Any:
    """Return torch's dtype, memory format or layout of that name."""
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
    return {key: argument_to_json(item) for key, item in items.items()}


# type: (key in JSON, writer, reader)
_TAGGED: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    NodeRef: ("$ref", lambda a: a.node, lambda v: NodeRef(int(v))),
    SizeExpression: ("$size", lambda a: a.expression, lambda v: SizeExpression(str(v))),
    slice: (
        "$slice",
        lambda a: [argument_to_json(p) for p in (a.start, a.stop, a.step)],
        lambda v: slice(*map(argument_from_json, v)),
    ),
    tuple: ("$tuple", lambda a: [argument_to_json(p) for p in a], lambda v: tuple(map(argument_from_json, v))),
    dict: ("$dict", _texts, lambda v: {k: argument_from_json(p) for k, p in v.items()}),
    torch.dtype: ("$dtype", _plain, lambda v: _of_torch(str(v), torch.dtype)),
    torch.memory_format: ("$memory_format", _plain, lambda v: _of_torch(str(v), torch.memory_format)),
    torch.layout: ("$layout", _plain, lambda v: _of_torch(str(v), torch.layout)),
    torch.device: ("$device", lambda a: "here", lambda v: RUN_DEVICE),
    type(Ellipsis): ("$ellipsis", lambda a: 1, lambda v: Ellipsis),
}
_READ = {key: read for key, _, read in _TAGGED.values()} | {"$float": lambda v: float(str(v))}
