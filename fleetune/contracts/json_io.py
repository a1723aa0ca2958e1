"""Conversion between records and JSON. Unknown keys, wrong types and non-finite numbers are refused by name."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fleetune.errors import Refused
from fleetune.filesystem import write_durably

T = TypeVar("T")

_JSON_TERMS = {
    r"a valid (tuple|list)\b": "a list, [...]",
    r"a (valid )?dictionary( or an instance of \w+)?": "an object, {...}",
    r"a valid (number|float)\b": "a number",
    r"a valid integer\b": "a whole number",
    r"a valid string\b": "text",
    r"a valid boolean\b": "true or false",
}
"""Pydantic's terms (regular expressions) -> the terms of JSON."""
MAX_LEVELS, MAX_DIGITS = 100, 300
"""Maximum nesting depth of values, and maximum digits of a whole number (longer ones have no finite float)."""
_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the cached parser of a type; building one takes milliseconds."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def dump(record: Any) -> dict[str, Any]:
    """Convert a record to plain JSON values; tuples become lists."""
    plain = _adapter(type(record)).dump_python(record, mode="json")
    assert isinstance(plain, dict)
    return plain


def text(record: Any) -> str:
    """Convert a record to JSON text; keys keep their declared order, so equal records give equal bytes."""
    return json.dumps(dump(record), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def load(kind: type[T], plain: Any, owner: str) -> T:
    """Convert plain values to a record of type `kind`.

    Refused: values that do not fit; the message starts with `owner`, for example a file name.
    """
    try:
        made: T = _adapter(kind).validate_python(plain)
    except ValidationError as error:
        raise Refused(f"{owner}: {_sentence(error, kind)}") from None
    return made


def parse(kind: type[T], source: str | bytes, owner: str) -> T:
    """Parse JSON text to a record of type `kind`. Refused: as by `load` and `parse_plain`."""
    return load(kind, parse_plain(source, owner), owner)


def parse_plain(source: str | bytes, owner: str) -> Any:
    """Parse JSON text to plain values.

    Refused: malformed JSON, repeated keys, non-finite or overlong numbers, and nesting deeper than MAX_LEVELS.
    """
    try:
        found = json.loads(
            source,
            parse_constant=_refuse_constant,
            parse_float=_finite_number,
            parse_int=_whole_number,
            object_pairs_hook=_unique_keys,
        )
    except RecursionError:
        raise Refused(f"{owner}: JSON is nested deeper than {MAX_LEVELS} levels") from None
    except UnicodeDecodeError as error:
        raise Refused(f"{owner}: {utf8_error(error)}") from None
    except ValueError as error:
        raise Refused(f"{owner}: not JSON ({error})") from None
    check_depth(found, owner)
    return found


def check_depth(found: Any, owner: str) -> None:
    """Refuse values nested deeper than MAX_LEVELS, because recursion over them could overflow the stack."""
    level = [found]
    for _ in range(MAX_LEVELS):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise Refused(f"{owner}: values are nested deeper than {MAX_LEVELS} levels; make it flatter")


def read(kind: type[T], path: Path) -> T:
    """Parse a JSON file to a record. Refused: a missing, unreadable or invalid file."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise Refused(f"{path}: cannot be read ({error.strerror}); give an existing file") from None
    return parse(kind, source, str(path))


def write(record: Any, path: Path) -> None:
    """Write a record as JSON text atomically; it is on disk afterwards."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(text(record).encode(), path)


def utf8_error(error: UnicodeDecodeError) -> str:
    """Describe the first invalid byte: `line 3: byte 0xff is not text in UTF-8`."""
    line = error.object.count(b"\n", 0, error.start) + 1
    return f"line {line}: byte 0x{error.object[error.start]:02x} is not text in UTF-8"


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object and refuse repeated keys, of which the parser would silently keep the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in {k for k, _ in pairs[:place]})
        raise ValueError(f"key {twice!r} is given twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a finite number")


def _finite_number(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


def _whole_number(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"{text[:40]}... is too large for a number")
    return int(text)


def _sentence(error: ValidationError, kind: Any) -> str:
    """Describe the first problem of a parse as `KEY: PROBLEM (got VALUE)`; unknown keys come first."""
    found = error.errors()
    first = next((e for e in found if e["type"] == "unexpected_keyword_argument"), found[0])
    key = ".".join(str(part) for part in first["loc"]) or "value"
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, Refused):  # raised by a record: its message is complete
        return str(cause)
    if first["type"] == "unexpected_keyword_argument":
        allowed = _fields_at(kind, first["loc"][:-1])
        return f"{key}: unknown key" + (f"; allowed are {', '.join(allowed)}" if allowed else "")
    if first["type"] == "missing":
        return f"{key}: this key is required"
    shown = repr(first.get("input"))
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    said = str(first["msg"]).replace("Input should be", "must be", 1)
    for pydantic_term, json_term in _JSON_TERMS.items():
        said = re.sub(pydantic_term, json_term, said)
    return f"{key}: {said[0].lower()}{said[1:]} (got {shown})"


def _fields_at(kind: Any, path: tuple[int | str, ...]) -> list[str]:
    """Field names of the record type that `path` leads to from `kind`; empty if it is not a record."""
    for part in path:
        if dataclasses.is_dataclass(kind) and isinstance(part, str):
            kind = get_type_hints(kind).get(part)
        kind = next((k for k in _leaves(kind) if dataclasses.is_dataclass(k)), kind)
    return [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []


def _leaves(kind: Any) -> list[Any]:
    inside = getattr(kind, "__args__", ())
    return [kind] if not inside else [leaf for k in inside for leaf in _leaves(k)]
