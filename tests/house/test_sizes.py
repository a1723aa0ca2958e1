"""Rooms stay small: a reader can hold a file, and a function, in mind."""

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("fleetune", "stages", "flows", "benchmarks")
FILE_MEDIAN, FILE_CEILING = 150, 400
FUNCTION_P90, FUNCTION_CEILING = 35, 80
ARGUMENTS = 6


def modules() -> list[Path]:
    """Every Python file of the product."""
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def functions() -> Iterator[tuple[str, int, int]]:
    """Of every function: where it is, its lines (decorators aside), its arguments (self and cls aside)."""
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args
                names = [a.arg for a in given.posonlyargs + given.args + given.kwonlyargs]
                arguments = len(names) - (names[:1] in (["self"], ["cls"]))
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", lines, 0 if is_form(node) else arguments


def is_form(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """True for a Prefect flow: its arguments are the fields of a form, which Prefect wants flat."""
    called = (decorator.func for decorator in node.decorator_list if isinstance(decorator, ast.Call))
    return any(isinstance(name, ast.Name) and name.id == "flow" for name in called)


def test_files_are_short() -> None:
    """Half of all files have at most 150 lines, and none has more than 400."""
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules()}
    too_long = {name: count for name, count in lines.items() if count > FILE_CEILING}
    assert not too_long, f"longer than {FILE_CEILING} lines: {too_long}"
    longest = sorted(lines.items(), key=lambda item: -item[1])[:10]
    assert statistics.median(lines.values()) <= FILE_MEDIAN, f"the longest files: {longest}"


def test_functions_are_short() -> None:
    """Nine of ten functions have at most 35 lines, and none has more than 80."""
    lines = {name: count for name, count, _ in functions()}
    too_long = {name: count for name, count in lines.items() if count > FUNCTION_CEILING}
    assert not too_long, f"longer than {FUNCTION_CEILING} lines: {too_long}"
    within = sorted(lines.values())[int(0.9 * (len(lines) - 1))]
    longest = sorted(lines.items(), key=lambda item: -item[1])[: len(lines) // 10]
    assert within <= FUNCTION_P90, f"the longest tenth: {longest}"


def test_functions_take_few_arguments() -> None:
    """No function takes more than six arguments: the rest is gathered in a record."""
    many = {name: count for name, _, count in functions() if count > ARGUMENTS}
    assert not many, f"more than {ARGUMENTS} arguments: {many}"
