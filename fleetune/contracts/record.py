"""The `record` decorator and the validators that records call on their fields."""

import dataclasses
import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

from fleetune.errors import Refused

if TYPE_CHECKING:
    from pydantic import ConfigDict

T = TypeVar("T")
STRICT: "ConfigDict" = {"extra": "forbid"}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
NAME_CHARACTERS = 100
"""Most of a name: names of files are longer by a date and an ending."""
RESERVED = ("coordinator",)
"""Participants of a run that are not devices; no device may use these names."""
LONGEST_PATH, LONGEST_PART = 1024, 255
"""Maximum characters of a file's path within an artifact, and of each of its parts."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def record(cls: type[T]) -> type[T]:
    """Make `cls` a frozen, slotted, keyword-only dataclass whose JSON form refuses unknown keys."""
    cls.__pydantic_config__ = STRICT  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)


def finite(owner: str, **values: float) -> None:
    """Refuse NaN and infinities; the error names the field."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise Refused(f"{owner}: {name} must be a finite number (got {value})")


def positive(owner: str, **values: float) -> None:
    """Refuse values that are not above 0; the error names the field."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise Refused(f"{owner}: {name} must be a number above 0 (got {value})")


def not_negative(owner: str, **values: float) -> None:
    """Refuse values below 0; the error names the field."""
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise Refused(f"{owner}: {name} must be a number of at least 0 (got {value})")


def one_of(owner: str, name: str, value: object, allowed: Iterable[Any]) -> None:
    """Refuse a value outside `allowed`; the error lists the allowed values."""
    allowed = tuple(allowed)
    if value not in allowed:
        raise Refused(f"{owner}: {name} is {value!r}; allowed are {', '.join(map(str, allowed))}")


def check_name(owner: str, value: str) -> None:
    """Refuse names that cannot be a file name or a part of an action such as main/2F0."""
    if not NAME.fullmatch(value):
        raise Refused(f"{owner}: {value!r} is not a name; use letters, digits, '.', '_' and '-'")
    if len(value) > NAME_CHARACTERS:
        raise Refused(f"{owner}: {value[:20]}... has {len(value)} characters; use at most {NAME_CHARACTERS}")


def check_device_name(value: str) -> None:
    """Refuse malformed and reserved device names."""
    check_name("device", value)
    if value in RESERVED:
        raise Refused(
            f"device {value}: this name is reserved for the process that coordinates the devices; choose another"
        )


def check_link_ends(owner: str, source: str, target: str) -> None:
    """Refuse a link from a device to itself."""
    if source == target:
        raise Refused(f"{owner}: a link joins two different devices")


def check_digest(owner: str, value: str, digits: int) -> None:
    """Refuse text that is not exactly `digits` lower-case hexadecimal digits."""
    if not re.fullmatch(rf"[0-9a-f]{{{digits}}}", value):
        raise Refused(f"{owner}: {value[:80]!r} is not a digest of {digits} hexadecimal digits")


def check_file_name(owner: str, path: str) -> None:
    """Refuse a relative file name, with forward slashes, that could escape the folder it is written to.

    Backslashes and drive letters (`C:`) are refused on every system, though only some systems interpret them.
    """
    parts = path.split("/")
    leads_out = any(part in ("", ".", "..") or len(part) > LONGEST_PART for part in parts)
    odd = any(c == "\\" or not c.isprintable() for c in path)
    if leads_out or odd or len(path) > LONGEST_PATH or re.match("[A-Za-z]:", path):
        raise Refused(
            f"{owner}: {path[:80]!r} is not the name of a file inside it; allowed are relative names with forward "
            "slashes, without '..', backslashes and control characters"
        )


def distinct(owner: str, what: str, values: Iterable[str]) -> None:
    """Refuse repeated values; `what` says in the error what they are."""
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise Refused(f"{owner}: {what} {value!r} is used twice; names must differ")
        seen.add(value)
