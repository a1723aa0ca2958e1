"""What the source text of the project holds, by package."""

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

from fleetune.contracts.record import record

ROOT = Path(__file__).parents[2]
LIBRARY = "fleetune"
PRODUCT = (LIBRARY, "stages", "flows", "containers", "benchmarks")


@record
class Size:
    """Of some files."""

    lines: int
    files: int
    functions: int
    """Methods and functions within functions too."""
    classes: int

    @classmethod
    def of(cls, files: Iterable[Path]) -> "Size":
        """Count files of Python."""
        texts = [path.read_text(encoding="utf-8") for path in files]
        nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
        return cls(
            lines=sum(len(text.splitlines()) for text in texts),
            files=len(texts),
            functions=sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes),
            classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
        )


def package_sizes() -> Mapping[str, Size]:
    """Package -> its size; those of the library one by one, its own files under its own name."""
    found = {LIBRARY: Size.of((ROOT / LIBRARY).glob("*.py"))}
    inner = sorted(path.parent for path in (ROOT / LIBRARY).glob("*/__init__.py"))
    for folder in (*inner, *(ROOT / name for name in PRODUCT if name != LIBRARY)):
        found[folder.relative_to(ROOT).as_posix()] = Size.of(folder.rglob("*.py"))
    return found


def total(sizes: Iterable[Size]) -> Size:
    """Add sizes up."""
    listed = list(sizes)
    return Size(
        lines=sum(size.lines for size in listed),
        files=sum(size.files for size in listed),
        functions=sum(size.functions for size in listed),
        classes=sum(size.classes for size in listed),
    )
