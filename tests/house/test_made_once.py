"""What tests share in a run is made once, and only what was made to its end is used."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.made_once import VARIABLE, made_once


def test_who_comes_while_it_is_made_waits_and_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several that need the same at once, as processes of a run do, get one folder, which one of them has made."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    together, makers = threading.Barrier(4), []

    def needs(number: int) -> Path:
        def make(folder: Path) -> None:
            makers.append(number)
            (folder / "made").write_text(str(number))

        together.wait()
        return made_once("key", make)

    with ThreadPoolExecutor(4) as pool:
        (folder,) = set(pool.map(needs, range(4)))
    assert [(folder / "made").read_text()] == [str(number) for number in makers]


def test_what_failed_half_way_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that was begun and not finished is not found by the next that needs it, nor left behind."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))

    def fails(folder: Path) -> None:
        (folder / "begun").touch()
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        made_once("key", fails)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    made = made_once("key", lambda folder: (folder / "made").touch())
    assert [path.name for path in made.iterdir()] == ["made"]
