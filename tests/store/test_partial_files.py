"""Partial files are never lost, never taken from a living process, and never left behind for ever."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from fleetune.errors import TryAgain
from fleetune.store import Store, partial_files
from tests.support.store.folders import Make

KEY = "0" * 32


def contents(folder: Path) -> set[str]:
    """Names of everything in a folder, hidden or not."""
    return {path.name for path in folder.iterdir()}


def test_a_disk_that_fails_to_flush_loses_nothing(store: Store, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing fsync once deleted the only copy of a trained model: on any error the folder stays where it was."""
    folder = make(a="1", **{"deep/b": "2"})
    sync = os.fsync

    def fails(handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="Input/output error"):
        store.put("plan", folder, stage_key=KEY, inputs={})
    assert (folder / "a").read_text() == "1" and (folder / "deep" / "b").read_text() == "2"
    assert store.storage.names("artifacts/plan") == []
    monkeypatch.setattr(os, "fsync", sync)
    digest = store.put("plan", folder, stage_key=KEY, inputs={})
    store.verify("plan", digest)
    assert not folder.exists()


def test_a_folder_without_a_manifest_makes_way(store: Store, make: Make) -> None:
    """An incomplete artifact under the same digest once made the store refuse and delete the complete one."""
    digest = store.put("plan", make(a="1"), stage_key=KEY, inputs={})
    there = store.folder("plan", digest)
    (there / "manifest.json").unlink()
    assert store.put("plan", make(a="1"), stage_key=KEY, inputs={}) == digest
    store.verify("plan", digest)
    assert contents(there.parent) == {digest}


@pytest.mark.parametrize("fails", [True, False])
def test_a_folder_from_another_disk_is_deleted_only_when_its_copy_is_whole(
    store: Store, make: Make, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A disk that fills up during a copy leaves the original and no partial copy."""
    folder, rename, copy = make(a="1", **{"deep/b": "2"}), Path.rename, shutil.copytree

    def other_disk(path: Path, target: Path) -> Path:
        if path == folder:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return rename(path, target)

    def full(source: Path, *arguments: Any, **options: Any) -> None:
        copy(source, *arguments, **options)
        if source == folder:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "rename", other_disk)
    if fails:
        monkeypatch.setattr(shutil, "copytree", full)
        with pytest.raises(OSError, match="No space left"):
            store.put("plan", folder, stage_key=KEY, inputs={})
        assert (folder / "deep" / "b").read_text() == "2"
        assert contents(Path(store.root) / "artifacts" / "plan") == set()
    else:
        digest = store.put("plan", folder, stage_key=KEY, inputs={})
        store.verify("plan", digest)
        assert not folder.exists() and contents(Path(store.root) / "artifacts" / "plan") == {digest}


def test_what_a_power_cut_must_not_take_is_flushed(store: Store, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renamed folder survives a power cut only if files, folders and all parents are flushed, in this order."""
    told: list[str] = []
    sync, rename = os.fsync, Path.rename

    def noted(handle: int) -> None:
        told.append(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    def renamed(path: Path, target: Path) -> Path:
        told.append(f"renamed to {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "rename", renamed)
    folder = make(a="1", **{"deep/b": "2"})
    digest = store.put("plan", folder, stage_key=KEY, inputs={})
    named = told.index(f"renamed to {digest}")
    root = Path(store.root)
    for path in (folder / "a", folder / "manifest.json", folder / "deep" / "b", folder / "deep", folder):
        assert str(path) in told[:named]
    assert str(root / "artifacts" / "plan") in told[named:]
    assert {str(root.parent), str(root), str(root / "artifacts")} <= set(told), "new folders, too"
    told.clear()
    store.storage.write("keys/k.json", b"{}")
    assert told[-1] == str(root / "keys")


HOLDS = """
import sys
from pathlib import Path
from fleetune.store import partial_files
folder = Path(sys.argv[1])
with partial_files.new_file(folder / "a") as file, partial_files.new_folder(folder / "b") as made:
    (made / "half").write_text("x")
    print(file.name, made.name, flush=True)
    sys.stdin.read()
"""


def test_parts_of_a_killed_process_are_collected_and_those_of_a_living_one_are_not(store: Store) -> None:
    """Killed processes once left `.part` folders of gigabytes for ever; those of living processes stay."""
    folder = Path(store.root) / "artifacts" / "plan"
    folder.mkdir(parents=True)
    (folder / f".old.{KEY}.part").mkdir()
    command = [sys.executable, "-c", HOLDS, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        held = set(maker.stdout.readline().split())
        store.tidy()
        assert contents(folder) == held and len(held) == 2
        maker.kill()
        maker.wait()
    assert contents(folder) == held
    store.tidy()
    assert contents(folder) == set()


def test_a_part_is_its_makers_even_while_it_is_renamed(tmp_path: Path) -> None:
    """A folder moved in from a work folder is locked before it gets the name of a part."""
    (tmp_path / "work").mkdir()
    with partial_files.locked(tmp_path / "work"):
        part = (tmp_path / "work").rename(partial_files.part_path(tmp_path / "whole"))
        partial_files.collect(tmp_path)
        assert part.is_dir()
    partial_files.collect(tmp_path)
    assert not part.exists()


def test_a_remote_store_that_fails_loses_nothing(tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a remote store refuses or loses bytes, the error says so, the folder stays, and storing it again repairs the
    artifact."""
    store = Store(f"memory://{tmp_path.name}", cache=tmp_path / "here")
    folder, put = make(a="1", b="22"), MemoryFileSystem.put_file

    def refuses(self: MemoryFileSystem, local: str, there: str, **options: Any) -> None:
        if there.endswith("/b"):
            raise OSError("quota exceeded")
        put(self, local, there, **options)

    def swallows(self: MemoryFileSystem, local: str, there: str, **options: Any) -> None:
        self.pipe_file(there, b"2") if there.endswith("/b") else put(self, local, there, **options)

    for fault, said in ((refuses, "quota exceeded"), (swallows, "1 bytes arrived")):
        monkeypatch.setattr(MemoryFileSystem, "put_file", fault)
        with pytest.raises(TryAgain, match=f"b: cannot be written \\({said}\\).*is still in {folder}"):
            store.put("plan", folder, stage_key=KEY, inputs={})
        assert (folder / "b").read_text() == "22"
    monkeypatch.setattr(MemoryFileSystem, "put_file", put)
    store.verify("plan", store.put("plan", folder, stage_key=KEY, inputs={}))
    assert not folder.exists()
