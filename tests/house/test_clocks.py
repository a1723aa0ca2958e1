"""Who may read a clock."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOLVERS = sorted(
    path for package in ("solving", "planning", "clock") for path in (ROOT / "fleetune" / package).rglob("*.py")
)
CLOCKS = {"time", "datetime"}


def clock_calls(source: str) -> list[int]:
    """Lines that call a function of a module in CLOCKS, or import a name from one; mere references are arguments."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in CLOCKS:
            found.append(node.lineno)
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in CLOCKS:
            found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("import time\nstarted = time.monotonic()", [2]),
        ("from time import monotonic", [1]),
        ("import time\ndef f(now=time.monotonic): return now()", []),
    ],
)
def test_a_clock_that_is_read_is_found(source: str, lines: list[int]) -> None:
    """Calls and imported functions are found; a clock as the default of an argument is none of them."""
    assert clock_calls(source) == lines


def test_solvers_read_only_the_clock_they_are_given() -> None:
    """A solver that read a clock of its own could not be tested without waiting, nor repeated."""
    at_fault = [f"{path.relative_to(ROOT)}:{line}" for path in SOLVERS for line in clock_calls(path.read_text())]
    assert not at_fault, at_fault
