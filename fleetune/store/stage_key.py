"""Stage keys: hashes of everything that can change a stage's outputs, and descriptions of what changed.

Names of ingredients, all with text values:
    stage, stage version             which stage
    package.NAME                     version of a package that the stage computes with
    code.PATH                        digest of a source file that the stage runs
    config.DOTTED.NAME               one leaf of the slice of config that the stage reads, as JSON
    seed
    content.NAME                     digest of something outside the store (data, model weights)
    input.KIND                       digest of an artifact that the stage reads
    input.FACT                       fact about an artifact that the stage reads beside its key: plan decisions

Source files are found by parsing, without importing them: import statements anywhere in a file, and strings that name a
module (a process to start, a method to look up; `"package.{name}"` stands for the whole package). Packages above a
module count, because importing it runs them, and so do templates beside modules. A line that ends in NOT_KEYED does not
count: it imports what does not change outputs.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fleetune.errors import Refused

CODE_PREFIX = "code."
Ingredients = dict[str, str]


def stage_key(ingredients: Mapping[str, str]) -> str:
    """Return the key of a stage: 32 hex digits, independent of the order of the ingredients."""
    plain = json.dumps(dict(ingredients), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(plain.encode()).hexdigest()[:32]


def flatten_config(plain: Any, name: str) -> Ingredients:
    """Flatten a nested config to `name.a.b` -> JSON text; empty mappings and lists count as leaves."""
    if isinstance(plain, Mapping) and plain:
        return {
            key: text for part, value in plain.items() for key, text in flatten_config(value, f"{name}.{part}").items()
        }
    return {name: json.dumps(plain, sort_keys=True, ensure_ascii=False)}


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Describe the differences: `training.learning_rate and data changed`; empty if there are none.

    Inputs are named only if nothing else differs, because earlier stages report their own changes.
    """
    names = [name for name in dict.fromkeys((*new, *old)) if old.get(name) != new.get(name)]
    code = sorted(name.removeprefix(CODE_PREFIX) for name in names if name.startswith(CODE_PREFIX))
    rest = [name for name in names if not name.startswith(CODE_PREFIX)]
    own = [name for name in rest if not name.startswith("input.")]
    said = list(dict.fromkeys(display_name(name) for name in (own if own or code else rest)))
    if code:
        said.append(f"code of {new.get('stage', 'the stage')}")
    if not said:
        return ""
    if len(said) > 3:
        said = [*said[:2], f"{len(said) - 3} more", said[-1]] if code else [*said[:3], f"{len(said) - 3} more"]
    told = " and ".join([", ".join(said[:-1]), said[-1]] if said[1:] else said) + " changed"
    return f"{told} ({_which(code, old)})" if code else told


def _which(code: list[str], old: Mapping[str, str]) -> str:
    """Name the first changed file; records of older versions list no files."""
    if not any(name.startswith(CODE_PREFIX) for name in old):
        return "the earlier code is unknown"
    return code[0] + (f" and {len(code) - 1} more" if code[1:] else "")


def display_name(ingredient: str) -> str:
    """Return the name of an ingredient as shown to users."""
    family, _, rest = ingredient.partition(".")
    said = {"package": f"{rest} version", "config": rest, "content": rest, "input": f"input {rest}"}
    return said.get(family, ingredient)


OWN = ("fleetune", "stages")
"""Packages whose modules may run in a stage."""
ROOT = Path(__file__).resolve().parents[2]
DATA = (".html", ".css", ".c")
"""Files that modules of the same package read, or that were compiled for them."""
FROM = re.compile(r"^[ \t]*from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)", re.MULTILINE)
IMPORT = re.compile(r"^[ \t]*import[ \t]+([^\n]*)", re.MULTILINE)
MODULE_TEXT = re.compile(rf"""["']((?:{"|".join(OWN)})(?:\.\w+)+)(\.\{{)?""")
NAME = re.compile(r"[\w.]+")
NOT_KEYED = "# not in stage keys"


class SourceDigests:
    """Digests of the source files that modules run; every file is read once."""

    def __init__(self, root: Path = ROOT, own: tuple[str, ...] = OWN) -> None:
        self._root, self._own = root, own
        self._there = {path for package in own for path in _walked(root, package)}
        self._data = [path for path in self._there if path.endswith(DATA)]
        self._named: dict[str, frozenset[str]] = {}
        self._read: dict[str, tuple[str, frozenset[str]]] = {}

    def of(self, module: str) -> dict[str, str]:
        """Map every file that `module` runs (path below the root, forward slashes) to 16 hex digits of its sha256.

        Refused: a module of this project that does not exist.
        """
        if module.partition(".")[0] in self._own and not self.has(module):
            raise Refused(f"{module}: no such module below {self._root}; give the name of an existing one")
        found: set[str] = set()
        todo = set(self._files_of(module))
        while todo:
            path = todo.pop()
            found.add(path)
            todo |= self._needs(path) - found
        return {path: self._read[path][0] for path in sorted(found)}

    def has(self, module: str) -> bool:
        """Return True if `module` is a module or package below the root."""
        path = module.replace(".", "/")
        return f"{path}.py" in self._there or f"{path}/__init__.py" in self._there

    def _needs(self, path: str) -> frozenset[str]:
        if path not in self._read:
            content = (self._root / path).read_bytes()
            names = set(_named(content.decode("utf-8", "replace"))) if path.endswith(".py") else set()
            needs = frozenset().union(*(self._files_of(name) for name in names))
            self._read[path] = hashlib.sha256(content).hexdigest()[:16], needs
        return self._read[path][1]

    def _files_of(self, name: str) -> frozenset[str]:
        if name not in self._named:
            self._named[name] = frozenset(self._files(name))
        return self._named[name]

    def _files(self, name: str) -> Iterator[str]:
        """Yield the files of a module and the packages above it; for other names, of the longest importable prefix."""
        folder = ""
        for part in name.rstrip(".").split("."):
            if f"{folder}{part}.py" in self._there:
                yield f"{folder}{part}.py"
                return
            folder += part + "/"
            if f"{folder}__init__.py" not in self._there:
                return
            yield f"{folder}__init__.py"
            yield from (path for path in self._data if path.startswith(folder) and "/" not in path[len(folder) :])
        if name.endswith("."):
            yield from (path for path in self._there if path.startswith(folder))


def _walked(root: Path, package: str) -> Iterator[str]:
    """Yield the paths of a package's files, relative to the root."""
    for folder, folders, names in os.walk(root / package):
        folders[:] = [name for name in folders if name != "__pycache__"]
        below = Path(folder).relative_to(root).as_posix()
        yield from (f"{below}/{name}" for name in names if name.endswith((".py", *DATA)))


def _named(text: str) -> Iterator[str]:
    """Yield the names in a Python file that may be modules; a trailing dot stands for a whole package."""
    text = "\n".join(line for line in text.splitlines() if not line.endswith(NOT_KEYED))
    for match in FROM.finditer(text):
        yield from (f"{match[1]}.{name}" for name in NAME.findall(match[2]))
    for match in IMPORT.finditer(text):
        yield from NAME.findall(match[1])
    for match in MODULE_TEXT.finditer(text):
        yield match[1] + ("." if match[2] else "")
