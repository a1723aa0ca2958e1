"""Fixtures: an empty world and the root of an empty store."""

from pathlib import Path

import pytest

from tests.support.flows.toy_pipeline import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A world in which nothing is stopped and nothing fails."""
    return World.new(tmp_path / "world")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Root of an empty store."""
    return tmp_path / "store"
