"""Content digests of sources."""

import os
from importlib.metadata import version
from pathlib import Path

import pytest

from fleetune.contracts.run_config import DataRequest
from fleetune.data import sources
from fleetune.data.sources import content_digest
from fleetune.data.writer import prepare_data
from fleetune.errors import Refused, TryAgain
from tests.support.data.samples import FRUITS, IMAGES, TEXT, fake_stdlib, json_lines


def digest_of(source: object) -> str:
    """Digest of a request for that source."""
    return content_digest(DataRequest(source=str(source)))


def test_one_byte_in_place_changes_it(tmp_path: Path) -> None:
    """An edit that keeps size and modification time changes the digest; undoing it restores the digest."""
    path = json_lines(tmp_path / "r.jsonl", FRUITS)
    before, stat = digest_of(path), path.stat()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"pear number 3", b"pear number 4"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size
    assert digest_of(path) != before
    path.write_bytes(content)
    assert digest_of(path) == before


def test_place_does_not_matter_but_format_does(tmp_path: Path) -> None:
    """Equal bytes elsewhere have the same digest; another suffix changes it."""
    one, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path in (one, other, tmp_path / "a.csv"):
        json_lines(path, FRUITS)
    assert digest_of(one) == digest_of(other)
    assert digest_of(one) != digest_of(tmp_path / "a.csv")


def test_folder_counts_names_and_every_file(tmp_path: Path) -> None:
    """Renaming, adding and editing a file each change a folder's digest."""
    (tmp_path / "sub").mkdir()
    json_lines(tmp_path / "sub" / "train.jsonl", FRUITS)
    seen = {digest_of(tmp_path)}
    (tmp_path / "sub" / "train.jsonl").rename(tmp_path / "train.jsonl")
    seen.add(digest_of(tmp_path))
    (tmp_path / "image.npy").write_bytes(b"1")
    seen.add(digest_of(tmp_path))
    (tmp_path / "image.npy").write_bytes(b"2")
    seen.add(digest_of(tmp_path))
    assert len(seen) == 4


def test_names_and_contents_cannot_be_confused(tmp_path: Path) -> None:
    """Moving bytes between a file's name and its content changes the digest."""
    for folder, name, content in (("a", "x", b"yz"), ("b", "xy", b"z")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(content)
    assert digest_of(tmp_path / "a") != digest_of(tmp_path / "b")


def test_built_in_sets_differ_and_follow_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built-in sets have distinct digests that depend on DATA_VERSION and scikit-learn's version."""
    found = [digest_of(name) for name in ("digits", "docstrings", "stdlib-sources")]
    assert len(set(found)) == 3
    assert found[1] == digest_of("docstrings")
    (tmp_path / "scikit_learn-0.dist-info").mkdir()
    (tmp_path / "scikit_learn-0.dist-info" / "METADATA").write_text("Name: scikit-learn\nVersion: 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert version("scikit-learn") == "0"
    assert digest_of("digits") != found[0]
    monkeypatch.setattr(sources, "DATA_VERSION", sources.DATA_VERSION + 1)
    assert digest_of("stdlib-sources") != found[2]


def test_built_in_texts_follow_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A patched standard library changes the digest under the same version of Python."""
    path = fake_stdlib(tmp_path / "library", {"a.py": "a = 1"}, monkeypatch) / "a.py"
    before = digest_of("stdlib-sources")
    path.write_text("a = 2")
    assert digest_of("stdlib-sources") != before


def test_prepared_data_note_it(tmp_path: Path) -> None:
    """data.json contains the content digest of its source."""
    request = DataRequest(source=str(json_lines(tmp_path / "r.jsonl", FRUITS)))
    prepare_data(request, TEXT, tmp_path / "d", 0)
    assert content_digest(request) in (tmp_path / "d" / "data.json").read_text()


@pytest.mark.parametrize("as_folder", [False, True], ids=["file", "folder"])
def test_data_edited_since_they_were_hashed_are_not_prepared(as_folder: bool, tmp_path: Path) -> None:
    """Bug: an edit between the hashing and the reading of a source went unnoticed, so the run's key named other content
    than its artifact."""
    (tmp_path / "set").mkdir()
    file = json_lines(tmp_path / "set" / "train.jsonl", FRUITS)
    request = DataRequest(source=str(file.parent if as_folder else file))
    hashed = content_digest(request)
    prepare_data(request, TEXT, tmp_path / "d", 0, expected_digest=hashed)
    json_lines(file, FRUITS[2:])
    with pytest.raises(TryAgain, match="was changed after this run read it .* start the run again"):
        prepare_data(request, TEXT, tmp_path / "e", 0, expected_digest=hashed)
    assert not list(tmp_path.glob("e*")), "nothing of it is left"
    prepare_data(request, TEXT, tmp_path / "e", 0)


def test_built_in_sets_are_not_compared(tmp_path: Path) -> None:
    """Digests of built-in sets depend on package versions, which can differ in a container."""
    prepare_data(DataRequest(source="digits"), IMAGES, tmp_path / "d", 0, expected_digest="of another version")


def test_missing_source_is_refused(tmp_path: Path) -> None:
    """A missing source is refused."""
    with pytest.raises(Refused, match=r"gone\.csv' does not exist"):
        digest_of(tmp_path / "gone.csv")
