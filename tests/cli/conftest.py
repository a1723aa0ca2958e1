"""Fixtures: a store with finished runs, and calls of the command line in this process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.cli.app import app
from tests.support.cli.calls import Call, working
from tests.support.cli.stand_in import Pipeline


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Root of an empty store; the working directory is beside it, and the terminal is wide enough for whole tables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLEETUNE_ROOT", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "kept"


@pytest.fixture
def call(root: Path) -> Call:
    """Call `fleetune` in this process, with its store at `root`."""

    def called(*arguments: str | Path) -> Result:
        return CliRunner(env={"FLEETUNE_ROOT": str(root)}).invoke(app, list(map(str, arguments)))

    return called


@pytest.fixture
def pipeline(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """A pipeline that trains nothing."""
    stand_in = Pipeline(root)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with working(stand_in):
        yield stand_in
