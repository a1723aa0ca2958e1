"""The one door between records and JSON: unknown keys, wrong types and non-finite numbers are refused by name."""

import dataclasses
import json
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
    try:
        plain = json.loads(source, parse_constant=_refuse_constant, object_pairs_hook=_each_once)
    except ValueError as error:
        raise Refused(f"{owner}: not JSON ({error})") from None
    return load(kind, plain, owner)


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
    part.write_text(text(record), encoding="utf-8")
    part.replace(path)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ; JSON would let the last of equals win, and hide a slip."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in {k for k, _ in pairs[:place]})
        raise ValueError(f"key {twice!r} is given twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a finite number")


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
