"""Runs tests for every strategy: `pytest tests/planning --strategies pp dp` selects some."""

import pytest

from fleetune.planning import strategies


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option; pytest knows it if tests/planning is named on the command line."""
    parser.addoption("--strategies", nargs="+", default=(), help="only these strategies")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `strategy` once per strategy."""
    if "strategy" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--strategies", default=()) or sorted(strategies())
        metafunc.parametrize("strategy", chosen)
