"""No test module imports another one: what they share lies in tests/support. And tests of the library do without
`flows`, the layer above it.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
ABOVE = {"flows", "cli", "whole", "browser", "engine", "benchmarks", "house", "stages", "cuda"}
"""Folders of tests, and of their support, that are not of the library alone."""


@functools.cache
def imports() -> tuple[tuple[Path, int, str], ...]:
    """(file below tests, line, module) of every import, at the top of a file or within a function."""
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        found += [(path.relative_to(TESTS), line, name) for line, name in imported(path.read_text())]
    return tuple(found)


def imported(source: str) -> Iterator[tuple[int, str]]:
    """(line, module) of the imports of a text; a name that is imported may be a module itself, and is told as one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = "." * node.level + (f"{node.module}." if node.module else "")
            yield from ((node.lineno, package + alias.name) for alias in node.names)


def is_test_module(name: str) -> bool:
    """True if pytest collects the module, or takes fixtures from it."""
    return any(part == "conftest" or part.startswith("test_") for part in name.split("."))


def area(path: Path) -> str:
    """The part of the project that a file below tests is about: its folder there, or below tests/support."""
    first, *rest = path.parts
    return rest[0] if first == "support" and rest else first


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f():\n    from tests.cli.test_run import pipeline", ["tests.cli.test_run.pipeline"]),
        ("from tests.cli import conftest, calls", ["tests.cli.conftest", "tests.cli.calls"]),
        ("from . import conftest\nimport flows.api", [".conftest", "flows.api"]),
    ],
)
def test_an_import_is_found(source: str, names: list[str]) -> None:
    """However it is written, and wherever in the text it stands."""
    assert [name for _, name in imported(source)] == names


def test_no_module_imports_a_test_module() -> None:
    """Of two test modules that import each other's helpers neither can be run, moved or removed alone; and fixtures of
    a conftest.py are for its own folder."""
    at_fault = [f"tests/{path}:{line} imports {name}" for path, line, name in imports() if is_test_module(name)]
    assert not at_fault, "what is shared belongs in tests/support:\n" + "\n".join(at_fault)


def test_tests_of_the_library_do_without_flows() -> None:
    """A test of the library that used the layer above would fail for that layer's faults, and would not show that the
    library can be used without it."""
    at_fault = [
        f"tests/{path}:{line} imports {name}"
        for path, line, name in imports()
        if name.split(".")[0] == "flows" and area(path) not in ABOVE
    ]
    assert not at_fault, "such a test belongs in tests/flows:\n" + "\n".join(at_fault)
