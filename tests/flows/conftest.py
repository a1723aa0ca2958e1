"""A store and a world for every test."""

from pathlib import Path

import pytest

from tests.flows.toy_pipeline import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty world."""
    return World.new(tmp_path / "world")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Root of an empty store."""
    return tmp_path / "store"
