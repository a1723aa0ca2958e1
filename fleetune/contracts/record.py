"""What every record shares: the decorator that makes it one, and the small proofs its fields need."""

import dataclasses
import math
import re
from collections.abc import Iterable
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict

from fleetune.errors import Refused

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def record(cls: type[T]) -> type[T]:
    """Make `cls` a frozen, slotted, keyword-only dataclass whose JSON form refuses unknown keys."""
    cls.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)


def finite(owner: str, **values: float) -> None:
    """Refuse NaN and infinities by name."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise Refused(f"{owner}: {name} must be a finite number (got {value})")


def positive(owner: str, **values: float) -> None:
    """Refuse anything not above zero, by name."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise Refused(f"{owner}: {name} must be a number above 0 (got {value})")


def not_negative(owner: str, **values: float) -> None:
    """Refuse anything below zero, by name."""
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise Refused(f"{owner}: {name} must be a number of at least 0 (got {value})")


def one_of(owner: str, name: str, value: object, allowed: Iterable[Any]) -> None:
    """Refuse a value outside a short list, and print the list."""
    allowed = tuple(allowed)
    if value not in allowed:
        raise Refused(f"{owner}: {name} is {value!r}; allowed are {', '.join(map(str, allowed))}")


def a_name(owner: str, value: str) -> None:
    """Refuse names that could not be a file name or a part of an action such as main/2F0."""
    if not NAME.fullmatch(value):
        raise Refused(f"{owner}: {value!r} is not a name; use letters, digits, '.', '_' and '-'")


def distinct(owner: str, what: str, values: Iterable[str]) -> None:
    """Refuse a name used twice."""
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise Refused(f"{owner}: {what} {value!r} is used twice; names must differ")
        seen.add(value)
