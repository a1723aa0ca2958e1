"""YAML of run files, read strictly: plain JSON values only, no key twice, no aliases; every refusal names the line."""

import math
import re
from pathlib import Path
from typing import Any

import yaml

from fleetune.contracts import json_io
from fleetune.errors import Refused

FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
"""`1e-4` is a number, as in YAML 1.2 and JSON; PyYAML alone would read text."""


class _Strict(yaml.SafeLoader):
    """SafeLoader that refuses aliases, duplicate keys and keys that are not text."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(
                problem="aliases (*NAME) are not read here; write the value out", problem_mark=mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                raise yaml.MarkedYAMLError(problem="a key must be text; put it in quotes", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Strict.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789."))


def read(path: Path) -> dict[str, Any]:
    """A YAML file whose top is a mapping, as plain values; anything else is refused with file and line."""
    try:
        source = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise Refused(f"{path}: cannot be read ({error.strerror}); give an existing YAML file") from None
    except UnicodeDecodeError as error:
        raise Refused(f"{path}: {json_io.utf8_error(error)}; give a YAML file") from None
    plain = parse(source, str(path))
    if not isinstance(plain, dict):
        raise Refused(f"{path}: it holds {type_name(plain)}; a mapping of keys to values is needed")
    return plain


def parse(source: str, owner: str) -> Any:
    """YAML text as plain JSON values; `owner` opens the message when it is refused."""
    try:
        plain = yaml.load(source, Loader=_Strict)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise Refused(f"{owner}:{where}: {_one_line(error.problem or error.context or 'not YAML')}") from None
    except yaml.reader.ReaderError as error:
        line = source.count("\n", 0, error.position) + 1
        raise Refused(f"{owner}: line {line}: character U+{error.character:04X} is not allowed in YAML") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Refused(f"{owner}: not YAML ({_one_line(str(error))})") from None
    json_io.check_depth(plain, owner)
    return _plain(plain, owner, "")


def type_name(value: Any) -> str:
    """The type of a value, in words for an error message."""
    names = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "nothing")


def _plain(value: Any, owner: str, key: str) -> Any:
    """`value` itself when JSON can hold it; dates, sets and non-finite numbers are refused by their key."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _plain(inner, owner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _plain(inner, owner, f"{key}.{index}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise Refused(f"{owner}: {key or 'value'}: {value} is not a finite number")
    elif value is not None and not isinstance(value, str | int | float):
        raise Refused(f"{owner}: {key or 'value'}: {value!s} is a {type(value).__name__}; put text in quotes")
    return value


def _one_line(text: str) -> str:
    return " ".join(text.split())


def text(plain: Any) -> str:
    """Plain values as YAML, in their order."""
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
