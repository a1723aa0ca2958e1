"""docs/strategies.md lists every option of every strategy, and no other."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from fleetune.planning.api import strategies

STRATEGIES = strategies()

PAGE = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text()


def listed(name: str) -> set[str]:
    """Options in the table of a strategy's section; the plain strategies have a column for their names."""
    found = re.search(rf"^## [^\n]*\b{re.escape(name)}\b[^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    assert found, f"no section of {name}"
    rows = [line.split("|")[1:] for line in found[1].splitlines() if line.startswith("| `")]
    plain = [row[1:] for row in rows if row[0].strip() == f"`{name}`"]
    return {option for row in plain or rows for option in re.findall(r"`(\w+)`", row[0])}


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_page_lists_the_options_of_a_strategy(name: str) -> None:
    """A reader finds all that may be set, and nothing that is refused."""
    assert listed(name) == {field.name for field in fields(STRATEGIES[name].options)}
