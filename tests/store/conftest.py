"""Fixtures: stores, and folders to put into them."""

from pathlib import Path

import pytest

from fleetune.store import Store
from tests.support.store.folders import Make, maker


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty local store."""
    return Store(tmp_path / "store")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make(**{"a/b": "text"}) creates a folder with these files."""
    return maker(tmp_path)
