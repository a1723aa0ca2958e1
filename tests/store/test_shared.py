"""Stores that others can write to: content is validated before anything is written for it."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fleetune.errors import Refused
from fleetune.store import Store
from fleetune.store.manifest import FileEntry, content_digest
from tests.support.store.folders import Make
from tests.support.store.run_records import a_run

CONTENT, SHA = b"evil", hashlib.sha256(b"evil").hexdigest()
DIGEST = "d0" * 16
NAMES = (
    "../out", "a/../../out", "/out", "a//b", "a/./b", "", ".", "..", "a/", "a\\..\\out", "\\\\host\\out", "C:out",
    "c:/out", "a\0b", "a\nb", "x" * 300, "a/" * 600 + "b", "manifest.json",
)  # fmt: skip


def a_manifest(*files: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"kind": "plan", "files": list(files), "stage_key": "k", "inputs": {}, "created": "2026", **changes}


def an_entry(path: str, **changes: Any) -> dict[str, Any]:
    return {"path": path, "bytes": len(CONTENT), "sha256": SHA, **changes}


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def shared(tmp_path: Path) -> Store:
    """A remote store whose reader keeps local copies at `reader`."""
    return Store(f"memory://shared-{tmp_path.name}", cache=tmp_path / "reader")


def poison(store: Store, manifest: dict[str, Any], digest: str = DIGEST, **files: bytes) -> None:
    """Write what anyone with access to the store could write."""
    for name, content in {**files, "manifest.json": json.dumps(manifest).encode()}.items():
        store.storage.write(f"artifacts/plan/{digest}/{name}", content)


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_a_file_leads_out_of_its_artifact(shared: Store, tmp_path: Path, name: str) -> None:
    """A manifest with `../` in a file name once let a reader write anywhere; now nothing is fetched."""
    poison(shared, a_manifest(an_entry("a"), an_entry(name)), a=CONTENT)
    with pytest.raises(Refused, match="not the name of a file inside it|is used twice"):
        shared.folder("plan", DIGEST)
    assert everything(tmp_path) == []


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (a_manifest(an_entry("a"), an_entry("a")), "'a' is used twice"),
        (a_manifest(an_entry("a/b"), an_entry("a")), "'a/b' would lie inside of file 'a'"),
        (a_manifest(an_entry("manifest.json/a")), "would lie inside of file 'manifest.json'"),
        (a_manifest(an_entry("a", sha256="../x")), "not a digest of 64 hexadecimal digits"),
        (a_manifest(an_entry("a"), kind="../x"), "is not a name"),
        (a_manifest(an_entry("a"), stage_key="../x"), "is not a name"),
        (a_manifest(an_entry("a"), inputs={"../x": DIGEST}), "is not a name"),
        (a_manifest(an_entry("a"), inputs={"fleet": "../x"}), "not a digest of 32 hexadecimal digits"),
    ],
)
def test_manifests_hold_names_and_digests(shared: Store, manifest: dict[str, Any], said: str) -> None:
    """Kinds and digests become folder names, so malformed ones are refused."""
    poison(shared, manifest, a=CONTENT)
    with pytest.raises(Refused, match=said):
        shared.folder("plan", DIGEST)


@pytest.mark.parametrize("said", [b"other", b"evi", b"evil twin"])
def test_a_fetched_file_has_its_name_only_with_its_content(shared: Store, tmp_path: Path, said: bytes) -> None:
    """A fetched file that differs from its manifest never appears in the local cache."""
    digest = content_digest([FileEntry(**an_entry("a"))])
    poison(shared, a_manifest(an_entry("a")), digest, a=said)
    with pytest.raises(Refused, match="a: file of the store is corrupt"):
        shared.folder("plan", digest)
    poison(shared, a_manifest(an_entry("a")), a=CONTENT)
    with pytest.raises(Refused, match="does not give its digest"):
        shared.folder("plan", DIGEST)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_no_link_among_the_copies_is_followed(shared: Store, tmp_path: Path) -> None:
    """Symbolic links in the local cache are refused."""
    digest = content_digest([FileEntry(**an_entry("deep/a"))])
    poison(shared, a_manifest(an_entry("deep/a")), digest, **{"deep/a": CONTENT})
    copies = shared.local / "cache" / "artifacts" / "plan" / digest
    copies.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (copies / "deep").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="deep: it is a symbolic link in the local cache"):
        shared.folder("plan", digest)
    assert everything(tmp_path / "elsewhere") == []
    (copies / "deep").unlink()
    (copies / "deep").mkdir()
    (tmp_path / "mine").write_bytes(b"mine")
    (copies / "deep" / "a").symlink_to(tmp_path / "mine")
    assert (shared.folder("plan", digest) / "deep" / "a").read_bytes() == CONTENT
    assert (tmp_path / "mine").read_bytes() == b"mine"


@pytest.mark.parametrize(
    "change",
    [{"outputs": {"plan": "../../x"}}, {"outputs": {"../x": DIGEST}}, {"run": "../x"}, {"stage": "/x"}],
)
def test_key_records_hold_names_and_digests(store: Store, change: dict[str, Any]) -> None:
    """Malformed kinds and digests in key records are refused."""
    plain = {"stage": "plan", "run": "r", "outputs": {"plan": DIGEST}, "ingredients": {}, **change}
    store.storage.write("keys/k.json", json.dumps(plain).encode())
    with pytest.raises(Refused, match="is not a name|not a digest"):
        store.find("k")


def test_run_records_hold_names_and_digests(store: Store, make: Make) -> None:
    """Malformed names in run records are refused, because they lead to artifacts, work folders and locks."""
    store.runs.save(a_run("b-1", "2026-01-02"))
    plain = json.loads((store.local / "runs" / "b-1" / "run.json").read_text())
    stage = plain["stages"][0]
    for change in (
        {"id": "../x"},
        {"id": "b-2"},
        {"stages": [{**stage, "stage": "../x"}]},
        {"stages": [{**stage, "key": "../x"}]},
        {"stages": [{**stage, "outputs": {"plan": "../x"}}]},
        {"stages": [{**stage, "inputs": {"/x": DIGEST}}]},
    ):
        store.storage.write("runs/b-1/run.json", json.dumps({**plain, **change}).encode())
        with pytest.raises(Refused, match="is not a name|not a digest|record of another run"):
            store.runs.load("b-1")
    for kind, digest in (("../x", DIGEST), ("plan", "../x")):
        with pytest.raises(Refused, match="is not a name|not a digest"):
            store.folder(kind, digest)
