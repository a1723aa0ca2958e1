"""The folder of compiled code."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleetune import jit
from tests.support.filesystem.synced import recorded

NAME = "compiled-now"


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A folder beside the source with compiled code of this and of an older version."""
    for name in (NAME, "compiled-before"):
        inner = tmp_path / "beside" / name / "clock_1"
        inner.mkdir(parents=True)
        (inner / "play.nbc").write_bytes(b"machine code")
    return tmp_path / "beside"


@pytest.fixture
def lock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Make a folder read-only for any user."""
    locked: list[Path] = []
    real = os.access

    def access(path: Path, mode: int) -> bool:
        return not any(folder in (path, *Path(path).parents) for folder in locked) and real(path, mode)

    monkeypatch.setattr(os, "access", access)
    return locked.append


def test_beside_the_source(beside: Path, tmp_path: Path) -> None:
    """A writable folder is used in place, and code of older versions is deleted."""
    assert jit.choose_folder(NAME, (beside, tmp_path / "cache")) == beside / NAME
    assert [path.name for path in beside.iterdir()] == [NAME]
    assert not (tmp_path / "cache").exists()


def test_what_cannot_be_written_is_copied(beside: Path, tmp_path: Path, lock: Callable[[Path], None]) -> None:
    """Compiled code in a read-only folder is copied to a writable one, and the original stays."""
    lock(beside)
    chosen = jit.choose_folder(NAME, (beside, tmp_path / "cache"))
    assert chosen == tmp_path / "cache" / NAME
    assert (chosen / "clock_1" / "play.nbc").read_bytes() == b"machine code"
    assert {path.name for path in beside.iterdir()} == {NAME, "compiled-before"}
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [NAME]


def test_a_copy_is_on_disk_before_it_has_its_name(
    beside: Path, tmp_path: Path, lock: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut leaves no zeros for machine code."""
    lock(beside)
    done = recorded(monkeypatch)
    chosen = jit.choose_folder(NAME, (beside, tmp_path / "cache"))
    flushed = done[: done.index(f"=> {chosen}")]
    assert [path for path in flushed if path.endswith(f"{NAME}/clock_1/play.nbc")]


def test_copied_once(beside: Path, tmp_path: Path, lock: Callable[[Path], None]) -> None:
    """A second process does not copy again, so code compiled since then stays."""
    lock(beside)
    places = (beside, tmp_path / "cache")
    (tmp_path / "cache" / NAME).mkdir(parents=True)
    (tmp_path / "cache" / NAME / "new.nbc").write_bytes(b"compiled since")
    chosen = jit.choose_folder(NAME, places)
    assert chosen is not None and [path.name for path in chosen.iterdir()] == ["new.nbc"]


def test_copied_by_many_at_once(beside: Path, tmp_path: Path, lock: Callable[[Path], None]) -> None:
    """Processes that start together produce one complete folder and leave nothing else."""
    lock(beside)
    with ThreadPoolExecutor(8) as pool:
        chosen = set(pool.map(lambda _: jit.choose_folder(NAME, (beside, tmp_path / "cache")), range(8)))
    assert chosen == {tmp_path / "cache" / NAME}
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [NAME]
    assert [path.name for path in (tmp_path / "cache" / NAME).rglob("*.nbc")] == ["play.nbc"]


def test_nowhere(beside: Path, tmp_path: Path, lock: Callable[[Path], None]) -> None:
    """Without a writable folder there is none."""
    (tmp_path / "file").write_text("")
    lock(beside)
    assert jit.choose_folder(NAME, (beside, tmp_path / "file")) is None
    assert jit.choose_folder(NAME, (beside,)) is None
