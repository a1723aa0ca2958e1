"""The built-in texts: Python's own standard library, as docstrings with their package or as whole sources."""

import ast
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fleetune.data.table import Listed, Source

SKIPPED = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "_bundled"})
PACKAGED_APART = frozenset({"distutils", "idlelib", "lib2to3", "tkinter", "turtle", "turtledemo", "ensurepip"})
"""Left out of the docstrings: many distributions ship Python without them."""
CLASSES = 10
LEAST_WORDS = 5


def stdlib_files() -> tuple[tuple[str, Path], ...]:
    """(relative name, file) of every source of the standard library but its tests, sorted by name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).parts
        if not SKIPPED.intersection(parts) and not parts[0].startswith("config-"):
            found.append(("/".join(parts), path))
    return tuple(sorted(found))


def docstrings() -> Source:
    """Docstrings of public classes and functions; the label is the top-level package or module they come from.

    The CLASSES packages with the most docstrings take part. White space is normalised. The names of all these
    packages are taken out of all texts, so that no text says its own answer; a text found twice is kept once, and
    not at all when two packages share it.
    """
    found = [(package, text) for package, text in _docstrings() if len(text.split()) >= LEAST_WORDS]
    counts = Counter(package for package, _ in dict.fromkeys(found))
    ranked = sorted(counts, key=lambda package: (-counts[package], package))
    packages = frozenset(ranked[:CLASSES])
    names = re.compile(r"\b(" + "|".join(sorted(packages)) + r")\b", re.IGNORECASE)
    owners: dict[str, set[str]] = {}
    for package, text in found:
        if package in packages:
            stripped = " ".join(names.sub(" ", text).split())
            if len(stripped.split()) >= LEAST_WORDS:
                owners.setdefault(stripped, set()).add(package)
    rows = tuple({"text": text, "label": min(own)} for text, own in owners.items() if len(own) == 1)
    return Source(train=(Listed(owner="docstrings", values=rows),))


def stdlib_sources() -> Source:
    """Every source file as one document; files that differ only in white space are kept once."""
    documents: dict[str, str] = {}
    for _, path in stdlib_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.strip():
            documents.setdefault(" ".join(text.split()), text)
    rows = tuple({"text": text} for text in documents.values())
    return Source(train=(Listed(owner="stdlib-sources", values=rows, counted="file"),), packed=True)


def _docstrings() -> Iterator[tuple[str, str]]:
    """(top-level name, docstring with white space normalised), in order of file and line."""
    for name, path in stdlib_files():
        package = name.split("/")[0].removesuffix(".py")
        if package.startswith("_") or package in PACKAGED_APART:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in old sources
            tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
                yield package, " ".join((ast.get_docstring(node) or "").split())
