"""Runs tests for every strategy: `pytest tests/planning --strategies pp dp` selects some."""

from collections.abc import Iterator

import pytest

from fleetune.planning import strategies
from fleetune.solving.hpp.methods import search


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option; pytest knows it if tests/planning is named on the command line."""
    parser.addoption("--strategies", nargs="+", default=(), help="only these strategies")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `strategy` once per strategy."""
    if "strategy" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--strategies", default=()) or sorted(strategies())
        metafunc.parametrize("strategy", chosen)


@pytest.fixture(scope="module")
def short_walks() -> Iterator[None]:
    """Walks of method search a fortieth as long: on up to 5 units, 4 devices and 4 samples it looks at every plan
    besides, so that the same plans are found. What full walks find is tested in tests/solving/hpp/test_search.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "MIN_WORK", search.MIN_WORK // 40)
        yield
