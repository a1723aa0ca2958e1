"""Tests use what a module offers, so that a redesign behind it breaks none of them: they reach for no private name of
the product, and replace none of its functions, but where a comment on the line, or on the one above it, says why."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
OURS = ("benchmarks", "containers", "fleetune", "flows", "stages", "tests")
REASON = ("# private: ", "# replaced: ")
OWN = ("self", "cls")
DOCUMENTED = ("_replace", "_exit")
"""Public names of Python itself: `_replace` of named tuples, and `os._exit`."""


def without_reason(path: Path) -> Iterator[str]:
    """Yield what a test file reaches for or replaces without a reason."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    imported = dict(_imported(ast.parse(text)))
    for node in ast.walk(ast.parse(text)):
        what = _private(node) or _replaced(node, imported)
        if what and not any(word in line for word in REASON for line in lines[max(0, node.lineno - 2) : node.lineno]):
            yield f"{path.relative_to(TESTS)}:{node.lineno}: {what}"


def _private(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute) and _is_private(node.attr):
        own = isinstance(node.value, ast.Name) and node.value.id in OWN
        return "" if own else node.attr
    if isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
        return next((alias.name for alias in node.names if _is_private(alias.name)), "")
    if _is_setattr(node):
        name = node.args[1 if len(node.args) > 2 else 0]
        last = name.value.rpartition(".")[2] if isinstance(name, ast.Constant) and isinstance(name.value, str) else ""
        return last if _is_private(last) else ""
    return ""


def _replaced(node: ast.AST, imported: dict[str, str]) -> str:
    """The function or class of ours that a test replaces; constants, in capitals, it may set."""
    if not _is_setattr(node):
        return ""
    if len(node.args) == 2:
        place = node.args[0].value if isinstance(node.args[0], ast.Constant) else ""
        owner, _, name = str(place).rpartition(".")
    else:
        first = node.args[0]
        while isinstance(first, ast.Attribute):
            first = first.value
        owner = imported.get(first.id, "") if isinstance(first, ast.Name) else ""
        name = str(node.args[1].value) if isinstance(node.args[1], ast.Constant) else ""
    return f"{owner}.{name}" if _is_ours(owner) and not name.isupper() else ""


def _is_setattr(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "setattr"
        and len(node.args) >= 2
    )


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name.split(".")[0], alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in DOCUMENTED


def _is_ours(module: str) -> bool:
    return module.split(".")[0] in OURS


def test_tests_use_what_modules_offer() -> None:
    """Each private name, and each replaced function of ours, has its reason beside it."""
    found = [each for path in sorted(TESTS.rglob("*.py")) for each in without_reason(path)]
    assert not found, "\n".join(found)
