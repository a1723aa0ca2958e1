"""Fixtures: a run file with its data."""

import json
from pathlib import Path

import pytest
import yaml

from tests.support.whole.pipelines import CONFIG


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A run file with its own small data set beside it."""
    rows = [
        {"text": f"{i} {word} " * (1 + i % 4), "label": word} for i in range(40) for word in ("red", "green", "blue")
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path
