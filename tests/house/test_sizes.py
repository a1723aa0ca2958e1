"""Packages stay small: each has a budget of lines, in line_budgets.toml, and within it a file or a function may be as
long as its thought."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.weight.sources import package_sizes

BUDGETS = Path(__file__).with_name("line_budgets.toml")
STEP = 10
"""Budgets are multiples of it."""
SLACK = 0.03
"""A package that is further below its budget gets a smaller one, so that what was taken out stays out."""


def faults(lines: Mapping[str, int], budgets: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence for each package that has no budget, or is over it, or far below it."""
    for package in sorted(lines.keys() | budgets.keys()):
        count, budget = lines.get(package, 0), budgets.get(package, 0)
        fitting = -(-count // STEP) * STEP
        line = f'"{package}" = {fitting}'
        if count > budget:
            yield f"{package} has {count} lines, {count - budget} over its budget of {budget}: take as many out of it"
        elif not count:
            yield f"{package} is gone: take its line out of {BUDGETS.name}"
        elif count < (1 - SLACK) * budget and fitting < budget:
            yield f"{package} has {count} lines, {budget - count} below its budget of {budget}: write {line}"


def test_packages_are_within_their_budgets() -> None:
    """No package has more lines than its budget, nor 3 % less: a change that needs more takes it out elsewhere in the
    package, or says in its commit why the budget grows."""
    lines = {package: size.lines for package, size in package_sizes().items()}
    found = list(faults(lines, tomllib.loads(BUDGETS.read_text(encoding="utf-8"))))
    assert not found, "\n".join(found)


def test_a_fault_names_the_package_and_by_how_much() -> None:
    """Over its budget, far below it, without one, and with one that has no lines; not what fits, nor a small package
    whose budget is its lines rounded up."""
    lines = {"over": 1011, "fits": 1000, "little less": 971, "less": 969, "new": 5, "small": 41}
    budgets = {"over": 1010, "fits": 1000, "little less": 1000, "less": 1000, "small": 50, "gone": 10}
    assert [(sentence.split(" has ")[0].split(" is ")[0], sentence) for sentence in faults(lines, budgets)] == [
        ("gone", "gone is gone: take its line out of line_budgets.toml"),
        ("less", 'less has 969 lines, 31 below its budget of 1000: write "less" = 970'),
        ("new", "new has 5 lines, 5 over its budget of 0: take as many out of it"),
        ("over", "over has 1011 lines, 1 over its budget of 1010: take as many out of it"),
    ]
