"""Fixtures: stores, and folders to put into them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fleetune.store import Store

Make = Callable[..., Path]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty local store."""
    return Store(tmp_path / "store")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make(**{"a/b": "text"}) creates a folder with these files."""
    made: list[Path] = []

    def _make(**files: str) -> Path:
        folder = tmp_path / f"made-{len(made)}"
        made.append(folder)
        folder.mkdir()
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return folder

    return _make
