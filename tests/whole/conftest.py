"""Fixtures: a run file with its data."""

from pathlib import Path

import pytest

from tests.support.whole.pipelines import write_run_file


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A run file with its own small data set beside it."""
    return write_run_file(tmp_path)
