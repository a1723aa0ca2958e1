"""The source files that a module runs: those it imports or names, directly or not, of this project's own packages.

Found by reading, not by importing: import statements anywhere in a file, and texts that are the name of a module (a
process to be started, a method to be looked up; all of a package where the rest of the name is worked out). Importing a
module runs every package above it, so these count too, and files beside modules that are no Python.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

OWN = ("fleetune", "stages")
"""Packages whose modules may run in a stage."""
ROOT = Path(__file__).resolve().parents[2]
DATA = (".html", ".css")
FROM = re.compile(r"^[ \t]*from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)", re.MULTILINE)
IMPORT = re.compile(r"^[ \t]*import[ \t]+([^\n]*)", re.MULTILINE)
TEXT = re.compile(rf"""["']((?:{"|".join(OWN)})(?:\.\w+)+)(\.\{{)?""")
NAME = re.compile(r"[\w.]+")


class Sources:
    """The code below a folder as it is now; every file is read once."""

    def __init__(self, root: Path = ROOT, own: tuple[str, ...] = OWN) -> None:
        self._root = root
        self._there = {path for package in own for path in _walked(root, package)}
        self._data = [path for path in self._there if path.endswith(DATA)]
        self._named: dict[str, frozenset[str]] = {}
        self._read: dict[str, tuple[str, frozenset[str]]] = {}

    def of(self, module: str) -> dict[str, str]:
        """Path below the root, with forward slashes -> 16 hex digits of its sha256, for all that the module runs."""
        found: set[str] = set()
        todo = set(self._files_of(module))
        while todo:
            path = todo.pop()
            found.add(path)
            todo |= self._needs(path) - found
        return {path: self._read[path][0] for path in sorted(found)}

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
        """Files of a module and of the packages above it; of what is no module the longest part that is one."""
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
    """Paths of a package's files, relative to the root."""
    for folder, folders, names in os.walk(root / package):
        folders[:] = [name for name in folders if name != "__pycache__"]
        below = Path(folder).relative_to(root).as_posix()
        yield from (f"{below}/{name}" for name in names if name.endswith((".py", *DATA)))


def _named(text: str) -> Iterator[str]:
    """Names in a Python file that may be modules; those that end in a dot stand for all of a package."""
    for match in FROM.finditer(text):
        yield from (f"{match[1]}.{name}" for name in NAME.findall(match[2]))
    for match in IMPORT.finditer(text):
        yield from NAME.findall(match[1])
    for match in TEXT.finditer(text):
        yield match[1] + ("." if match[2] else "")
