"""Integer expressions of the batch size, such as `3*s0` or `(s0//2)`, evaluated without evaluating code."""

import ast
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from fleetune.errors import Refused

LONGEST_CHARACTERS = 400
HIGHEST_POWER = 8
LARGEST = 1 << 62

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


class Sizes:
    """Evaluates size expressions for one batch symbol, remembering what it has seen.

    Known are whole numbers, the symbol, + - * / // % **, brackets, and FloorDiv, CleanDiv, CeilDiv, Mod, PythonMod,
    Max and Min; anything else is refused.
    """

    def __init__(self, symbol: str) -> None:
        self._symbol = symbol
        self._seen: dict[tuple[str, int], int] = {}

    def at(self, expression: str, batch: int) -> int:
        """The expression's value for a batch of that many samples."""
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
