"""Validation of numbers in problem files; messages name rows and columns by the names that the user gave.

The field types `Whole` and `Real` are stricter than pydantic's: a number is never text or a boolean; an integer may be
written 4, 4.0 or 4e0.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NoReturn

import numpy as np
from pydantic import BeforeValidator, Strict
from pydantic_core import PydanticCustomError

from fleetune.arrays import Floats
from fleetune.errors import Refused

Axis = tuple[str, Sequence[object]]
"""Index of a table, noun and entries: `("device", ["nano-0", "tx2"])`."""
MIN_VALUE, MAX_VALUE = 1e-60, 1e60
"""Limits of rates, seconds per byte and the like; no product or quotient overflows between these."""


def validate_names(noun: str, given: Sequence[str]) -> None:
    """Refuse an empty list, names that are blank or not printable on one line, and names used twice."""
    if not given:
        raise Refused(f"{noun}s: the list is empty; give at least one {noun}")
    first: dict[str, int] = {}
    for index, name in enumerate(given):
        if not name.strip() or not name.isprintable():
            raise Refused(f"{noun} {index}: {name!r} is not a name; give printable characters on one line")
        if first.setdefault(name, index) != index:
            raise Refused(f"{noun}s {first[name]} and {index} are both named {name!r}; names must differ")


def validate_choice(field: str, value: str, allowed: Iterable[str]) -> None:
    """Refuse a value outside `allowed`; the message lists what is allowed."""
    if value not in (known := tuple(allowed)):
        raise Refused(f"{field}: {value!r} is not known; allowed are {', '.join(known)}")


def validate_range(field: str, value: float, least: float, most: float = math.inf) -> None:
    """Refuse NaN, infinities and values outside [least, most]."""
    if isinstance(value, float) and not math.isfinite(value):
        raise Refused(f"{field}: {value} is not a finite number; give one of at least {least}")
    if value < least:
        raise Refused(f"{field}: {value} is below {least}; give a number of at least {least}")
    if value > most:
        raise Refused(f"{field}: {value} is above {most}; give a number of at most {most}")


def validate_positive(
    field: str, value: float, least: float = MIN_VALUE, most: float = MAX_VALUE, hint: str = ""
) -> None:
    """Refuse NaN, infinities, 0, negative numbers, and numbers outside [least, most]; hint: what else to do about 0."""
    if value == 0:
        raise Refused(f"{field}: {value} is not above 0; give a number above 0{hint}")
    validate_range(field, value, 0)
    validate_range(field, value, least, most)


def validate_table(field: str, values: Sequence[Any], *axes: Axis) -> Floats:
    """Return nested rows as an array with one dimension per axis, all finite and at least 0.

    Refuses rows whose length differs from their axis, and names the first invalid number.
    """
    _shape(field, values, axes, [])
    array = np.array(values, np.float64).reshape([len(entries) for _, entries in axes])
    with np.errstate(invalid="ignore"):
        wrong = ~(np.isfinite(array) & (array >= 0))
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        where = _where(field, [f"{noun} {entries[i]}" for (noun, entries), i in zip(axes, at, strict=True)])
        fault = "is below 0" if math.isfinite(array[at]) else "is not a finite number"
        raise Refused(f"{where}: {float(array[at])} {fault}; give a number of at least 0")
    return array


def validate_links(
    field: str, rows: Sequence[Sequence[float | None]], devices: Sequence[str], *, may_be_0: bool
) -> Floats:
    """Return a matrix [from device][to device] with a diagonal of 0; other entries finite, at least 0 or above 0.

    Refuses another shape, and names the first invalid number; null counts as invalid.
    """
    _square(field, rows, devices)
    count = len(devices)
    array = np.array([[0.0 if a == b or x is None else x for b, x in enumerate(row)] for a, row in enumerate(rows)])
    absent = np.array([[x is None for x in row] for row in rows]) & ~np.eye(count, dtype=bool)
    with np.errstate(invalid="ignore"):
        wrong = (
            absent | ~np.isfinite(array) | (array < 0) | ((array == 0) & ~np.eye(count, dtype=bool) & (not may_be_0))
        )
    if wrong.any():
        a, b = np.argwhere(wrong)[0]
        what = "null" if absent[a, b] else float(array[a, b])
        rule = "of at least 0" if may_be_0 else "above 0"
        raise Refused(
            f"{field} from {devices[a]} to {devices[b]}: {what} is not a finite number {rule}; "
            "give one for every pair of devices (the diagonal alone may be null)"
        )
    return array


def link_matrix(rows: Sequence[Sequence[float | None]], diagonal: float = 0.0) -> Floats:
    """Return validated rows as a matrix [from, to] with this diagonal."""
    return np.array([[diagonal if a == b else x for b, x in enumerate(row)] for a, row in enumerate(rows)], np.float64)


def validate_ascending(field: str, values: Sequence[int], least: int) -> None:
    """Refuse an empty list, values below `least`, and values that do not ascend strictly."""
    if not values:
        raise Refused(f"{field}: the list is empty; give at least one")
    validate_range(field, values[0], least)
    for one, other in zip(values, values[1:], strict=False):
        if other == one:
            raise Refused(f"{field}: {one} is given twice; give each once, ascending")
        if other < one:
            raise Refused(f"{field}: {other} follows {one}; give them ascending, each once")


def plural(count: int, noun: str) -> str:
    """Format a count: `1 layer`, `2 layers`, `2 micro-batches`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('ch') else 's'}"


def _shape(field: str, values: Sequence[Any], axes: Sequence[Axis], at: list[str]) -> None:
    noun, entries = axes[0]
    if len(values) != len(entries):
        given = plural(len(values), "row" if len(axes) > 1 else "number")
        wanted = plural(len(entries), noun)
        raise Refused(f"{_where(field, at)}: {given} for {wanted}; give one for each, in their order")
    if len(axes) > 1:
        for entry, row in zip(entries, values, strict=True):
            _shape(field, row, axes[1:], [*at, f"{noun} {entry}"])


def _where(field: str, at: Sequence[str]) -> str:
    return f"{field} of {', '.join(at)}" if at else field


def _square(field: str, rows: Sequence[Sequence[object]], devices: Sequence[str]) -> None:
    count, lengths = len(devices), {len(row) for row in rows}
    must = f"it must be {count} x {count}: one row per sending device, one number per receiving device"

    def refuse(what: str) -> NoReturn:
        raise Refused(f"{field}: {what}; {must}")

    if len(lengths) <= 1 and (len(rows), *lengths) != (count, count):
        refuse(f"it is {len(rows)} x {max(lengths, default=0)}")
    if len(rows) != count:
        refuse(f"it has {plural(len(rows), 'row')}")
    for device, row in zip(devices, rows, strict=True):
        if len(row) != count:
            refuse(f"its row of {device} has {plural(len(row), 'number')}")


MAX_WHOLE = 2**62
"""Limit of integers, so that 64 bits hold them."""


def _whole(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1:
        if abs(value) <= MAX_WHOLE:
            return int(value)
        raise PydanticCustomError("large", f"must be a whole number of at most {MAX_WHOLE}")
    raise PydanticCustomError("whole", "must be a whole number")


Whole = Annotated[int, BeforeValidator(_whole)]
Real = Annotated[float, Strict()]
