"""One suite over all strategies: `pytest tests/planning --strategies pp dp` narrows it."""

import pytest

from fleetune.planning import strategies


def pytest_addoption(parser: pytest.Parser) -> None:
    """Known when tests/planning is named on the command line."""
    parser.addoption("--strategies", nargs="+", default=(), help="only these strategies")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `strategy` runs once for each of them."""
    if "strategy" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--strategies", default=()) or sorted(strategies())
        metafunc.parametrize("strategy", chosen)
