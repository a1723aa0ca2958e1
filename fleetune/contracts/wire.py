"""The one door between records and JSON: unknown keys, wrong types and non-finite numbers are refused by name."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fleetune.errors import Refused

T = TypeVar("T")


_PLAINLY = {
    r"a valid (tuple|list)\b": "a list, [...]",
    r"a (valid )?dictionary( or an instance of \w+)?": "an object, {...}",
    r"a valid (number|float)\b": "a number",
    r"a valid integer\b": "a whole number",
    r"a valid string\b": "text",
    r"a valid boolean\b": "true or false",
}
"""What the parser says, in the words of JSON."""
MOST_LEVELS, MOST_DIGITS = 100, 300
"""Of values within values, and of a whole number; longer ones have no finite float."""
_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Building a parser takes milliseconds: one per kind and process."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def dump(record: Any) -> dict[str, Any]:
    """A record as plain JSON values; tuples become lists."""
    plain = _adapter(type(record)).dump_python(record, mode="json")
    assert isinstance(plain, dict)
    return plain


def text(record: Any) -> str:
    """A record as JSON text: keys in declared order, so equal records give equal bytes."""
    return json.dumps(dump(record), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def load(kind: type[T], plain: Any, owner: str) -> T:
    """Plain values as a record; `owner` (a file's name, say) opens the message when they are refused."""
    try:
        made: T = _adapter(kind).validate_python(plain)
    except ValidationError as error:
        raise Refused(f"{owner}: {_sentence(error, kind)}") from None
    return made


def parse(kind: type[T], source: str | bytes, owner: str) -> T:
    """JSON text as a record."""
    return load(kind, plain(source, owner), owner)


def plain(source: str | bytes, owner: str) -> Any:
    """JSON text as plain values; refused where a number is too large to be finite, or values are nested too deep."""
    try:
        found = json.loads(
            source,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_whole,
            object_pairs_hook=_each_once,
        )
    except RecursionError:
        raise Refused(f"{owner}: not JSON to be read here (nested deeper than {MOST_LEVELS} levels)") from None
    except UnicodeDecodeError as error:
        raise Refused(f"{owner}: {not_text(error)}") from None
    except ValueError as error:
        raise Refused(f"{owner}: not JSON ({error})") from None
    prove_depth(found, owner)
    return found


def prove_depth(found: Any, owner: str) -> None:
    """Refuse plain values that are nested so deep that walking through them could end this process."""
    level = [found]
    for _ in range(MOST_LEVELS):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise Refused(f"{owner}: values are nested deeper than {MOST_LEVELS} levels; make it flatter")


def read(kind: type[T], path: Path) -> T:
    """A JSON file as a record; a missing or unreadable file is refused by its name."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise Refused(f"{path}: cannot be read ({error.strerror}); give an existing file") from None
    return parse(kind, source, str(path))


def write(record: Any, path: Path) -> None:
    """Write a record as JSON text, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text(record), encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def not_text(error: UnicodeDecodeError) -> str:
    """Where the first byte is that is no text: `line 3: byte 0xff is not text in UTF-8`."""
    line = error.object.count(b"\n", 0, error.start) + 1
    return f"line {line}: byte 0x{error.object[error.start]:02x} is not text in UTF-8"


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ; JSON would let the last of equals win, and hide a slip."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in {k for k, _ in pairs[:place]})
        raise ValueError(f"key {twice!r} is given twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a finite number")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"{text[:40]}... is too large for a number")
    return int(text)


def _sentence(error: ValidationError, kind: Any) -> str:
    """The first problem of a parse as `key: what was given and what is allowed`; unknown keys come first."""
    found = error.errors()
    first = next((e for e in found if e["type"] == "unexpected_keyword_argument"), found[0])
    key = ".".join(str(part) for part in first["loc"]) or "value"
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, Refused):  # raised by the record itself: already a whole sentence
        return str(cause)
    if first["type"] == "unexpected_keyword_argument":
        allowed = _fields_at(kind, first["loc"][:-1])
        return f"{key}: unknown key" + (f"; allowed are {', '.join(allowed)}" if allowed else "")
    if first["type"] == "missing":
        return f"{key}: this key is required"
    shown = repr(first.get("input"))
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    said = str(first["msg"]).replace("Input should be", "must be", 1)
    for theirs, ours in _PLAINLY.items():
        said = re.sub(theirs, ours, said)
    return f"{key}: {said[0].lower()}{said[1:]} (got {shown})"


def _fields_at(kind: Any, path: tuple[int | str, ...]) -> list[str]:
    """Field names of the record that `path` leads to from `kind`; empty where it leads into something else."""
    for part in path:
        if dataclasses.is_dataclass(kind) and isinstance(part, str):
            kind = get_type_hints(kind).get(part)
        kind = next((k for k in _leaves(kind) if dataclasses.is_dataclass(k)), kind)
    return [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []


def _leaves(kind: Any) -> list[Any]:
    inside = getattr(kind, "__args__", ())
    return [kind] if not inside else [leaf for k in inside for leaf in _leaves(k)]
