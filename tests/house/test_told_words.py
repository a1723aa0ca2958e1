"""Errors of data are told in literal words: what an f-string fills in would leave a device as if it were public."""

import ast
import string
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
KINDS = ("Told", "ToldAgain")


def told() -> Iterator[tuple[str, ast.Call]]:
    """Place and call of every error that tells its parts apart."""
    for path in sorted((ROOT / "fleetune").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def fault(call: ast.Call) -> str:
    """What is wrong with a call, in words; empty: nothing."""
    words, *private = call.args
    if not (isinstance(words, ast.Constant) and isinstance(words.value, str)):
        return "its words are not literal"
    fields = [field for _, field, _, _ in string.Formatter().parse(words.value) if field is not None]
    public = {keyword.arg for keyword in call.keywords}
    if len(private) != fields.count("") or public != {*fields} - {""}:
        return "its fields are not those of its values"
    return ""


def test_errors_of_data_have_literal_words_and_a_value_for_each_field() -> None:
    """Words are literal, values without a name fill the fields without one, and those with a name the others."""
    every = list(told())
    assert len(every) > 100
    assert not [f"{place}: {fault(call)}" for place, call in every if fault(call)]
