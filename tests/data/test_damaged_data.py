"""Prepared data that a power cut or a disk has damaged: nothing of them trains, and they are prepared anew."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fleetune.contracts.run_config import DataRequest
from fleetune.data.job import Preparation, SharedChoices
from fleetune.data.local_data import prepare
from fleetune.data.prepared_data import PreparedData, check_files
from fleetune.data.sources import content_digest
from fleetune.data.writer import ensure_data
from fleetune.errors import Refused, TryAgain
from tests.support.data.samples import FRUITS, TEXT, every_byte, json_lines, prepared
from tests.support.filesystem.synced import recorded


def asked(folder: Path) -> Preparation:
    """A preparation of fruits that lie on a device."""
    request = DataRequest(source=str(json_lines(folder / "r.jsonl", FRUITS)), max_length=24)
    shared = SharedChoices(label_ids={"apple": 0, "pear": 1}, labels=("apple", "pear"), image_shape=(0, 0))
    return Preparation(request=request, spec=TEXT, seed=0, expected_digest=content_digest(request), shared=shared)


def zeroed(file: Path) -> None:
    """What a power cut leaves of a file that was renamed before it was written: its length."""
    file.write_bytes(bytes(file.stat().st_size))


def zeroed_rows(file: Path) -> None:
    """Of an array only the rows."""
    content = file.read_bytes()
    file.write_bytes(content[:128] + bytes(len(content) - 128))


def flipped(file: Path) -> None:
    """One bit of the last number is another."""
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_every_file_has_its_digest(tmp_path: Path) -> None:
    """data.json has the sha256 of each other file; data of older versions, without any, can still be read."""
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", FRUITS))
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in every_byte(tmp_path / "d").items()}
    described = digests.pop("data.json") and json.loads((tmp_path / "d" / "data.json").read_text())
    assert described.pop("files") == digests == data.info.files and len(digests) > 5
    check_files(tmp_path / "d")
    (tmp_path / "d" / "data.json").write_text(json.dumps(described))
    assert PreparedData(tmp_path / "d").size("train") == data.size("train")
    with pytest.raises(TryAgain, match=r"data\.json: it is not what was written"):
        check_files(tmp_path / "d")


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "zeros": ("train/input_ids.npy", zeroed),
    "zeros for labels": ("train/labels.npy", zeroed_rows),
    "one bit": ("train/labels.npy", flipped),
    "a file that is gone": ("tokenizer/tokenizer.json", Path.unlink),
    "no description": ("data.json", zeroed),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_data_are_prepared_anew(name: str, tmp_path: Path) -> None:
    """A device that finds its arrays damaged says so, and prepares them again to the same bytes."""
    path, damage = DAMAGES[name]
    given, folder = asked(tmp_path), tmp_path / "own" / "data"
    found = prepare(given, folder)
    before = every_byte(folder)
    damage(folder / path)
    with pytest.raises(TryAgain, match=rf"{path}: it is not what was written when these data were prepared"):
        check_files(folder)
    assert prepare(given, folder) == found
    assert every_byte(folder) == before


def test_whole_data_are_not_prepared_again(tmp_path: Path) -> None:
    """What is there whole is used, also where its source is gone."""
    given, folder = asked(tmp_path), tmp_path / "data"
    ensure_data(given, folder)
    before = every_byte(folder)
    ensure_data(replace(given, request=replace(given.request, source=str(tmp_path / "gone.jsonl"))), folder)
    assert every_byte(folder) == before


def test_other_files_are_not_removed(tmp_path: Path) -> None:
    """A folder without prepared data is nobody's to empty."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.txt").write_text("a")
    with pytest.raises(Refused, match="already holds something"):
        ensure_data(asked(tmp_path), tmp_path / "data")
    assert (tmp_path / "data" / "mine.txt").read_text() == "a"


def test_data_are_on_disk_before_they_have_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file and folder is flushed before the folder is renamed, and its new name after that."""
    folder, given = tmp_path / "own" / "data", asked(tmp_path)
    done = recorded(monkeypatch)
    ensure_data(given, folder)
    named = done.index(f"=> {folder}")
    files = {f"{folder}.part/{name}" for name in every_byte(folder)}
    folders = {f"{folder}.part", *(f"{folder}.part/{name}" for name in ("train", "tokenizer"))}
    assert files | folders <= set(done[:named])
    assert done[named + 1 :] == [str(folder.parent)]
