"""Fixtures: a store, and a pipeline that computes nothing."""

from pathlib import Path

import pytest

from fleetune.store import Store
from tests.support.flows.comparison.stand_in import StandIn


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "store")


@pytest.fixture
def pipeline(store: Store) -> StandIn:
    """A pipeline that computes nothing."""
    return StandIn(store)
