"""Built-in data sets: scikit-learn's digits, and texts from Python's own standard library."""

import ast
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fleetune.data.tables import DataSource, InMemoryTable


def digits() -> DataSource:
    """scikit-learn's 1797 grey 8x8 images of handwritten digits, scaled from 0..16 to 0..1; labels are 0..9."""
    from sklearn.datasets import load_digits  # takes a second to import, and only this source needs it

    found = load_digits()
    images = np.asarray(found.images, dtype=np.float64) / 16.0
    rows = tuple({"image": image, "label": int(label)} for image, label in zip(images, found.target, strict=True))
    return DataSource(train=(InMemoryTable(name="digits", values=rows),))


SKIPPED = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "_bundled"})
PACKAGED_APART = frozenset({"distutils", "idlelib", "lib2to3", "tkinter", "turtle", "turtledemo", "ensurepip"})
"""Packages excluded from the docstrings, because many distributions ship Python without them."""
CLASSES = 10
MIN_WORDS = 5


def stdlib_files() -> tuple[tuple[str, Path], ...]:
    """(relative name, file) of every source file of the standard library except its tests, sorted by name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).parts
        if not SKIPPED.intersection(parts) and not parts[0].startswith("config-"):
            found.append(("/".join(parts), path))
    return tuple(sorted(found))


def docstrings() -> DataSource:
    """Docstrings of public classes and functions; the label is the top-level package or module that defines them.

    Includes the CLASSES packages with the most docstrings. White space is normalised. The names of these packages are
    removed from all texts, so that no text contains its label. A duplicate within one package is kept once; a text
    that occurs in two packages is dropped.
    """
    found = [(package, text) for package, text in _docstrings() if len(text.split()) >= MIN_WORDS]
    counts = Counter(package for package, _ in dict.fromkeys(found))
    ranked = sorted(counts, key=lambda package: (-counts[package], package))
    packages = frozenset(ranked[:CLASSES])
    names = re.compile(r"\b(" + "|".join(sorted(packages)) + r")\b", re.IGNORECASE)
    owners: dict[str, set[str]] = {}
    for package, text in found:
        if package in packages:
            stripped = " ".join(names.sub(" ", text).split())
            if len(stripped.split()) >= MIN_WORDS:
                owners.setdefault(stripped, set()).add(package)
    rows = tuple({"text": text, "label": min(own)} for text, own in owners.items() if len(own) == 1)
    return DataSource(train=(InMemoryTable(name="docstrings", values=rows),))


def stdlib_sources() -> DataSource:
    """Every source file of the standard library as one document; files that differ only in white space count once."""
    documents: dict[str, str] = {}
    for _, path in stdlib_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.strip():
            documents.setdefault(" ".join(text.split()), text)
    rows = tuple({"text": text} for text in documents.values())
    return DataSource(train=(InMemoryTable(name="stdlib-sources", values=rows, row_noun="file"),), packed=True)


def _docstrings() -> Iterator[tuple[str, str]]:
    """(top-level name, docstring with white space normalised), in order of file and line."""
    for name, path in stdlib_files():
        package = name.split("/")[0].removesuffix(".py")
        if package.startswith("_") or package in PACKAGED_APART:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old sources contain invalid escape sequences
            tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
                yield package, " ".join((ast.get_docstring(node) or "").split())
