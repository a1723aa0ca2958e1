"""Artifacts: stored content comes back under its digest."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fleetune.errors import Refused
from fleetune.store import KeyRecord, Store
from tests.support.store.folders import Make
from tests.support.store.kill_at_every_step import put_and_keep

KEY = "k" * 32


def test_an_artifact_comes_out_as_it_went_in(store: Store, make: Make) -> None:
    """Every file, in subfolders too, comes back, and the manifest names the stage that made it."""
    digest = store.put(
        "plan", make(**{"plan.json": "{}", "deep/er.txt": "x"}), stage_key=KEY, inputs={"fleet": "f0" * 16}
    )
    folder = store.folder("plan", digest)
    assert (folder / "plan.json").read_text() == "{}"
    assert (folder / "deep" / "er.txt").read_text() == "x"
    manifest = store.manifest("plan", digest)
    assert [file.path for file in manifest.files] == ["deep/er.txt", "plan.json"]
    assert (manifest.kind, manifest.stage_key, manifest.inputs) == ("plan", KEY, {"fleet": "f0" * 16})
    store.verify("plan", digest)


def test_the_digest_is_of_the_content_alone(store: Store, make: Make) -> None:
    """Equal files of another stage are the same artifact; any other byte or name is another."""
    first = store.put("plan", make(a="1", b="2"), stage_key=KEY, inputs={})
    assert store.put("plan", make(b="2", a="1"), stage_key="other", inputs={"x": "1f" * 16}) == first
    assert store.put("plan", make(a="1", b="3"), stage_key=KEY, inputs={}) != first
    assert store.put("plan", make(a="1", c="2"), stage_key=KEY, inputs={}) != first
    assert store.put("plan", make(a="12", b=""), stage_key=KEY, inputs={}) != first


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder: (folder / "b").write_text("3"), "b: file of the plan artifact is corrupt"),
        (lambda folder: (folder / "b").write_text("longer"), "b: file of the plan artifact is corrupt"),
        (lambda folder: (folder / "a").unlink(), "a: file of the plan artifact is missing"),
        (lambda folder: (folder / "c").write_text(""), "c: file was added to the plan artifact"),
        (lambda folder: (folder / "manifest.json").unlink(), "no such artifact"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json: not JSON"),
    ],
)
def test_verify_names_the_first_bad_file(store: Store, make: Make, harm: object, said: str) -> None:
    """Changed, missing, added and unreadable files are named in one sentence."""
    digest = store.put("plan", make(a="1", b="2"), stage_key=KEY, inputs={})
    harm(store.folder("plan", digest))  # type: ignore[operator]
    with pytest.raises(Refused, match=said):
        store.verify("plan", digest)


@pytest.mark.parametrize("place", ["a", "deep/b"])
def test_a_folder_of_the_store_is_handed_out_only_if_it_is_what_was_stored(
    place: str, tmp_path: Path, make: Make
) -> None:
    """One bit that flips in any file, before or after it was read well, keeps the folder from leaving the store."""
    store = Store(tmp_path / "store")
    digest = store.put("plan", make(**{"a": "1", "deep/b": "2"}), stage_key=KEY, inputs={})
    file = store.folder("plan", digest) / place
    content = file.read_bytes()
    file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    for reader in (store, Store(store.root)):
        with pytest.raises(Refused, match=f"{place}: file of the plan artifact is corrupt.*delete the artifact's"):
            reader.folder("plan", digest)
    assert store.place("plan", digest) / place == file


def test_links_inside_an_artifact_are_not_followed(store: Store, make: Make, tmp_path: Path) -> None:
    """A store from elsewhere may link a file, a folder or a manifest to a place outside: it is refused, by its name,
    even where the content is the same."""
    digest = store.put("plan", make(**{"a": "1", "deep/b": "2"}), stage_key=KEY, inputs={})
    folder = store.folder("plan", digest)
    for name in ("a", "deep", "manifest.json", ""):
        (folder / name).rename(tmp_path / "outside")
        (folder / name).symlink_to(tmp_path / "outside")
        with pytest.raises(Refused, match="it is a link"):
            store.folder("plan", digest)
        (folder / name).unlink()
        (tmp_path / "outside").rename(folder / name)
    assert store.folder("plan", digest) == folder


def test_a_damaged_local_copy_of_a_remote_artifact_is_fetched_again(tmp_path: Path, make: Make) -> None:
    """The copy is no more trusted than a local store, and the remote store has the file as it was."""
    store = Store(f"memory://{tmp_path.name}", cache=tmp_path / "here")
    digest = store.put("plan", make(a="1"), stage_key=KEY, inputs={})
    copy = store.folder("plan", digest) / "a"
    copy.write_text("2")
    assert store.folder("plan", digest) / "a" == copy and copy.read_text() == "1"


def test_putting_it_again_mends_a_corrupt_artifact(store: Store, make: Make) -> None:
    """Storing the same content again repairs a corrupt artifact."""
    digest = store.put("plan", make(a="1"), stage_key=KEY, inputs={})
    (store.folder("plan", digest) / "a").write_text("2")
    assert store.put("plan", make(a="1"), stage_key=KEY, inputs={}) == digest
    store.verify("plan", digest)


def test_only_plain_files_make_an_artifact(store: Store, make: Make) -> None:
    """Empty and missing folders and links are refused, and the store stays empty."""
    linked = make(a="1")
    (linked / "b").symlink_to("a")
    for folder, said in ((make(), "it is empty"), (linked / "none", "not a folder"), (linked, "plain files only")):
        with pytest.raises(Refused, match=said):
            store.put("plan", folder, stage_key=KEY, inputs={})
    assert store.storage.names("artifacts/plan") == []


def test_a_key_is_found_only_with_all_its_artifacts(store: Store, make: Make) -> None:
    """A key cannot be kept before its artifacts, and is unknown again once one of them is deleted."""
    profile = store.put("profile", make(a="1"), stage_key=KEY, inputs={})
    record = KeyRecord(stage="profile", run="r", outputs={"profile": profile, "data": "d0" * 16}, ingredients={})
    with pytest.raises(Refused, match="no such artifact"):
        store.keep_key(KEY, record)
    data = store.put("data", make(b="1"), stage_key=KEY, inputs={})
    store.keep_key(KEY, KeyRecord(stage="profile", run="r", outputs={"profile": profile, "data": data}, ingredients={}))
    assert store.find(KEY) == {"profile": profile, "data": data}
    assert store.find("unknown") is None
    store.storage.remove(f"artifacts/data/{data}")
    assert store.find(KEY) is None


def test_many_may_put_the_same_at_once(store: Store, make: Make) -> None:
    """Eight threads that store equal folders all get the digest, and one complete artifact remains."""
    folders = [make(a="1", b="2" * 10000) for _ in range(8)]
    start, digests = threading.Barrier(8), []

    def put(folder: Path) -> None:
        start.wait()
        digests.append(Store(store.root).put("plan", folder, stage_key=KEY, inputs={}))

    threads = [threading.Thread(target=put, args=(folder,)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(digests)) == 1 and len(digests) == 8
    store.verify("plan", digests[0])
    assert [path.name for path in (Path(store.root) / "artifacts" / "plan").iterdir()] == digests[:1]


def test_work_outlives_an_attempt_and_goes_when_told(store: Store) -> None:
    """A work folder survives an attempt until it is dropped."""
    (store.work(KEY) / "half").write_text("x")
    assert (Store(store.root).work(KEY) / "half").read_text() == "x"
    store.drop_work(KEY)
    assert list(store.work(KEY).iterdir()) == []


def test_a_remote_store_keeps_the_same_promises(tmp_path: Path, make: Make) -> None:
    """A remote store puts, finds and fetches artifacts, and names a corrupt remote file."""
    root = f"memory://{tmp_path.name}"
    here = Store(root, cache=tmp_path / "here")
    digest = here.put("plan", make(**{"a": "1", "deep/b": "2"}), stage_key=KEY, inputs={})
    here.keep_key(KEY, KeyRecord(stage="plan", run="r", outputs={"plan": digest}, ingredients={}))
    there = Store(root, cache=tmp_path / "there")
    assert there.find(KEY) == {"plan": digest}
    assert (there.folder("plan", digest) / "deep" / "b").read_text() == "2"
    there.verify("plan", digest)
    there.storage.write(f"artifacts/plan/{digest}/a", b"3")
    with pytest.raises(Refused, match="a: file of the store is corrupt"):
        here.verify("plan", digest)
    there.storage.remove(f"artifacts/plan/{digest}")
    assert here.find(KEY) is None


def test_a_root_that_cannot_be_opened_is_refused() -> None:
    """An unknown protocol is refused with the given root."""
    with pytest.raises(Refused, match="root 'nothing://x' cannot be opened"):
        Store("nothing://x")


def test_a_kill_at_any_file_operation_leaves_all_or_nothing(tmp_path: Path) -> None:
    """After a kill at each file operation in turn, known keys have complete artifacts and a repetition succeeds."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.store.kill_at_every_step", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    steps = sorted((int(path.name) for path in tmp_path.iterdir() if path.name != "warm"), reverse=True)
    assert len(steps) > 15
    known = []
    for step in steps:
        store = Store(tmp_path / str(step))
        for digest in store.storage.names("artifacts/plan"):
            store.verify("plan", digest)
        known.append(store.find("key") is not None)
        store.drop_work("key")
        put_and_keep(tmp_path / str(step))
        found = store.find("key")
        assert found is not None
        store.verify("plan", found["plan"])
    assert known[0] and not known[-1]
    assert known == sorted(known, reverse=True), "once the key is known it stays known"
