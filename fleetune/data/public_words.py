"""Errors of a device's own data in words that may leave the device.

What a message quotes may come out of a sample: a cell, a heading that is a row, the name of a file. So nothing is taken
out of a message; it is made anew of what is known to be none: the literal words of the statement that raised the error,
what the run's own settings say, and the numbers of rows.
"""

import ast
import linecache
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from fleetune.errors import Refused

WITHHELD = "..."
EXPLANATION = f" ({WITHHELD} stands for what may come out of its data; look at them on the device)"
NOUNS = "line|row|image|document"
"""Words before the number of a row; a number that follows one is told."""
_PLACE = re.compile(rf": (?:{NOUNS}) \d+(?=$|[,:; ])")


class Told(Refused):
    """A refusal whose whole message may leave the device."""


def public_words(error: BaseException, known: Collection[str]) -> str:
    """Return the message of an error without anything that may come out of data.

    known: texts of the run's own settings, such as columns and the source. Only the type is told of an error that no
    statement of this package raised.
    """
    frame, line = _raised_at(error.__traceback__)
    words = None if frame is None else _literal(frame, line)
    if frame is None or words is None:
        return f"its data cannot be used: {type(error).__name__}{EXPLANATION}"
    told = ""
    for each in words:
        told += _filled(each, frame, known, numbered=re.search(rf"\b(?:{NOUNS}) $", told) is not None)
    return told + EXPLANATION if WITHHELD in told else told


def _raised_at(traceback: TracebackType | None) -> tuple[FrameType | None, int]:
    """Return the frame, and the line in it, in which the error was raised."""
    found: tuple[FrameType | None, int] = (None, 0)
    while traceback is not None:
        found, traceback = (traceback.tb_frame, traceback.tb_lineno), traceback.tb_next
    return found


def _literal(frame: FrameType, line: int) -> list[ast.expr] | None:
    """Return the parts of the text in the raise statement at a line; None where it has no literal text."""
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename)))
    except (SyntaxError, ValueError):
        return None
    raises = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    call = raises[-1].exc if raises else None
    if not isinstance(call, ast.Call) or not call.args:
        return None
    parts = list(_parts(call.args[-1]))
    return parts if any(isinstance(part, ast.Constant) for part in parts) else None


def _parts(text: ast.expr) -> Iterator[ast.expr]:
    if isinstance(text, ast.JoinedStr):
        for value in text.values:
            yield from _parts(value)
    elif isinstance(text, ast.BinOp) and isinstance(text.op, ast.Add):
        yield from _parts(text.left)
        yield from _parts(text.right)
    else:
        yield text


def _filled(part: ast.expr, frame: FrameType, known: Collection[str], numbered: bool) -> str:
    """Return a literal word as it is, what a setting or a place fills in, and WITHHELD for everything else.

    numbered: whether the number of a row is to follow.
    """
    if isinstance(part, ast.Constant) and isinstance(part.value, str):
        return part.value
    if not isinstance(part, ast.FormattedValue):
        return WITHHELD
    value = _value(part.value, frame)
    if numbered and type(value) is int:
        return str(value)
    if not isinstance(value, str | Path):
        return WITHHELD
    text = str(value)
    if text in known:
        return repr(text) if part.conversion == ord("r") else text
    place = _PLACE.search(text)
    if place is None:
        return WITHHELD
    before = text[: place.start()]
    column = next((f", {each}" for each in known if text[place.end() :] == f", {each}"), "")
    return f"{before if before in known else WITHHELD}{place.group()}{column}"


def _value(expression: ast.expr, frame: FrameType) -> Any:
    """Return the value of a name, of an attribute of one, or one more than a name's; None for anything else."""
    if isinstance(expression, ast.Name):
        return frame.f_locals.get(expression.id)
    if isinstance(expression, ast.Attribute):
        return getattr(_value(expression.value, frame), expression.attr, None)
    if isinstance(expression, ast.BinOp) and isinstance(expression.right, ast.Constant):
        before = _value(expression.left, frame)
        return before + 1 if type(before) is int and expression.right.value == 1 else None
    return None
