"""The store: artifacts by content, keys by what made them, work folders, locks.

artifacts/KIND/DIGEST/...  and manifest.json    written whole
keys/STAGE_KEY.json                             written after the artifacts it names
runs/RUN_ID/run.json, receipt.json              see runs.py, flows/receipt.py
comparisons/ID/                                 written by flows/comparison
tensorboard/RUN_ID/                             written by flows/trackers; local
promotions/NAME/NUMBER.json                     see promotions.py
work/STAGE_KEY/                                 outlives an interrupted attempt; local
cache/STAGE/                                    kept by a stage between runs; local
locks/NAME.lock                                 local
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.url_passwords import holds_password
from fleetune.errors import Refused
from fleetune.filesystem import check_utf8, expanded
from fleetune.library_sources import is_private
from fleetune.store.lock import Lock
from fleetune.store.manifest import (
    MANIFEST,
    FileEntry,
    FileMarks,
    KeyRecord,
    Manifest,
    check_artifacts,
    content_digest,
    file_marks,
    first_fault,
    list_files,
)
from fleetune.store.promotions import PromotionRegistry
from fleetune.store.runs import RunRegistry
from fleetune.store.storage import LocalStorage, RemoteStorage, Storage
from fleetune.wall_clock import WallClock, utc_now

TENSORBOARD = "tensorboard"
WRITTEN = ("artifacts/*", "keys", "runs/*", "comparisons/*", "cache/*", "promotions/*", "work", TENSORBOARD)
"""Folders that the store writes into, as patterns."""


class Store:
    """Artifacts, keys and run records under one root; safe for several processes at once."""

    def __init__(self, root: str | Path, *, cache: Path | None = None, clock: WallClock = utc_now) -> None:
        """`root` is a folder or an fsspec URL; `cache` is the local folder for a remote store's copies and locks."""
        self.root = str(root)
        self.storage, self.local = _open(str(root), cache)
        self.clock = clock
        self._hashed: dict[tuple[str, str], dict[str, FileMarks]] = {}
        self.runs = RunRegistry(self.storage, self.local)
        self.promotions = PromotionRegistry(self.storage)

    def put(self, kind: str, folder: Path, *, stage_key: str, inputs: Mapping[str, str]) -> str:
        """Move a local folder into the store as an artifact and return its digest.

        Refused: a folder that is empty or holds anything but plain files.
        """
        if not folder.is_dir() or folder.is_symlink():
            raise Refused(f"{folder}: not a folder; an artifact of kind {kind} is a folder of files")
        files = tuple(entry for entry in list_files(folder) if entry.path != MANIFEST)
        if not files:
            raise Refused(f"{folder}: it is empty; an artifact of kind {kind} needs at least one file")
        digest = content_digest(files)
        if self.has(kind, digest):
            if not self.first_bad(kind, digest):
                shutil.rmtree(folder)
                return digest
            self.storage.remove(_path(kind, digest))
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)  # libraries keep files to their owner; stages may be others
        manifest = Manifest(
            kind=kind, files=files, stage_key=stage_key, inputs=dict(inputs), created=self.clock().isoformat()
        )
        json_io.write(manifest, folder / MANIFEST)
        self.storage.adopt(folder, _path(kind, digest), MANIFEST)
        return digest

    def manifest(self, kind: str, digest: str) -> Manifest:
        """Return an artifact's manifest. Refused: an artifact that is not in the store."""
        return self._manifest(kind, digest)[0]

    def _manifest(self, kind: str, digest: str) -> tuple[Manifest, FileEntry]:
        """Return the manifest, and its own file entry."""
        path = f"{_path(kind, digest)}/{MANIFEST}"
        content = self.storage.read(path)
        if content is None:
            raise Refused(f"{self.root}/{path}: no such artifact; run the stage that makes {kind} again")
        itself = FileEntry(path=MANIFEST, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        return json_io.parse(Manifest, content, f"{self.root}/{path}"), itself

    def has(self, kind: str, digest: str) -> bool:
        """Return True if an artifact is complete in the store; `verify` checks its content."""
        return self.storage.read(f"{_path(kind, digest)}/{MANIFEST}") is not None

    def folder(self, kind: str, digest: str) -> Path:
        """Return a local, read-only folder with the artifact, fetched from a remote store if necessary. Whatever is
        read of an artifact is read from here: every file is what was stored, and none is a link.

        Refused: a missing artifact, or one that is not what was stored; the error names the first such file. Files
        that were not touched since this object has hashed them are not hashed again.
        """
        found, fault = self._checked(kind, digest)
        if fault:
            raise Refused(f"{fault}; delete the artifact's folder and run again to make it anew")
        return found

    def place(self, kind: str, digest: str) -> Path:
        """Return where an artifact lies, to be told and not read: unlike that of `folder`, its content may be damaged.

        Refused: a missing artifact or a corrupt manifest.
        """
        manifest, itself = self._manifest(kind, digest)
        if manifest.kind != kind or content_digest(manifest.files) != digest:
            path = f"{self.root}/{_path(kind, digest)}/{MANIFEST}"
            raise Refused(f"{path}: the manifest of the {kind} artifact is corrupt, it does not give its digest")
        return self.storage.folder(_path(kind, digest), [*manifest.files, itself])

    def verify(self, kind: str, digest: str) -> None:
        """Hash every file again. Refused: a missing, changed or extra file; the error names the first."""
        self._hashed.pop((kind, digest), None)
        if not isinstance(self.storage, LocalStorage):
            self._drop_copy(kind, digest)
        self.folder(kind, digest)

    def first_bad(self, kind: str, digest: str) -> str:
        """Hash every file again and describe the first fault; empty if there is none."""
        try:
            self.verify(kind, digest)
        except Refused as error:
            return str(error).partition("; delete the artifact's folder")[0]
        return ""

    def _checked(self, kind: str, digest: str) -> tuple[Path, str]:
        """Return an artifact's folder and its first fault; a faulty copy of a remote artifact is fetched again."""
        found, fault = self._compared(kind, digest)
        if fault and not isinstance(self.storage, LocalStorage):
            self._drop_copy(kind, digest)
            found, fault = self._compared(kind, digest)
        return found, fault

    def _compared(self, kind: str, digest: str) -> tuple[Path, str]:
        found = self.place(kind, digest)
        marks, link = file_marks(found)
        if link or self._hashed.get((kind, digest)) == marks:
            return found, f"{link}: it is a link; an artifact of a store holds plain files only" if link else ""
        manifest = self.manifest(kind, digest)
        fault = first_fault(found, manifest)
        listed = {entry.path for entry in manifest.files} | {MANIFEST}
        odd = sorted(marks.keys() - listed)
        fault = fault or (f"{found / odd[0]}: file was added to the {kind} artifact" if odd else "")
        if not fault:
            self._hashed[kind, digest] = marks
        return found, fault

    def _drop_copy(self, kind: str, digest: str) -> None:
        """Delete the local copy of an artifact of a remote store."""
        shutil.rmtree(self.local / "cache" / _path(kind, digest), ignore_errors=True)

    def keep_key(self, key: str, record: KeyRecord) -> None:
        """Write a key record. Refused: an output that is not in the store."""
        for kind, digest in record.outputs.items():
            self.manifest(kind, digest)
        self.storage.write(f"keys/{key}.json", json_io.text(record).encode())

    def key(self, key: str) -> KeyRecord | None:
        """Return the record of a stage key; None if no stage with that key has finished."""
        content = self.storage.read(f"keys/{key}.json")
        return None if content is None else json_io.parse(KeyRecord, content, f"{self.root}/keys/{key}.json")

    def find(self, key: str) -> dict[str, str] | None:
        """Return the outputs of a stage key, kind -> digest; None unless all of them are in the store."""
        record = self.key(key)
        if record is None or not all(self.has(kind, digest) for kind, digest in record.outputs.items()):
            return None
        return dict(record.outputs)

    def work(self, key: str) -> Path:
        """Return the local work folder of a stage key, with what an interrupted attempt left in it."""
        folder = self.local / "work" / key
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def work_keys(self) -> tuple[str, ...]:
        """Return the stage keys that have a work folder."""
        folder = self.local / "work"
        names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
        return tuple(sorted(name for name in names if not name.startswith(".")))  # those are partial, or removed

    def drop_work(self, key: str) -> None:
        """Delete the work folder of a stage key."""
        shutil.rmtree(self.local / "work" / key, ignore_errors=True)

    def tidy(self) -> None:
        """Delete partial files of killed processes; those of living ones stay."""
        self.storage.collect(WRITTEN)

    def cache(self, stage: str) -> Path:
        """Return the local cache folder of a stage; it may not exist."""
        return self.local / "cache" / stage

    def lock(
        self,
        name: str,
        pause: Callable[[float], bool],
        waiting: Callable[[str], None] = lambda holder: None,
        *,
        brief: bool = False,
    ) -> Lock:
        """Return the lock called `name`, for example a stage key; see Lock for the rest."""
        return Lock(self.local / "locks" / f"{name}.lock", pause, waiting, brief=brief)

    def in_use(self, pause: Callable[[float], bool], waiting: Callable[[str], None] = lambda holder: None) -> Lock:
        """Return the lock that keeps artifacts from being removed until they are named in a record; see Lock.

        A run holds it from finding or storing artifacts until its run record names them, a promotion from finding its
        run until it is written. Any number of processes may hold it at once.
        """
        return Lock(self._removal_lock, pause, waiting, shared=True, brief=True)

    def removal(self, pause: Callable[[float], bool], waiting: Callable[[str], None] = lambda holder: None) -> Lock:
        """Return the lock under which records and artifacts are removed; free when nobody holds `in_use`."""
        return Lock(self._removal_lock, pause, waiting, brief=True)

    @property
    def _removal_lock(self) -> Path:
        return self.local / "locks" / "removal.lock"


def _open(root: str, cache: Path | None) -> tuple[Storage, Path]:
    """Open the storage that `root` names; return it with the local folder for work and locks."""
    if not re.search("://|::", root):
        local = Path(os.path.abspath(os.path.expanduser(root)))
        check_utf8("store", str(local))
        return LocalStorage(local), local
    if holds_password(root):
        raise Refused(
            "store: its URL holds a password, which would be kept and shown in commands; leave it out and give it to "
            "fsspec, such as by the variable FSSPEC_FTP_PASSWORD"
        )
    import fsspec  # brings asyncio: only for stores that are elsewhere
    from fsspec.implementations.local import LocalFileSystem

    try:
        files, path = fsspec.core.url_to_fs(root)
    except (ValueError, ImportError) as error:
        raise Refused(f"store: root {root!r} cannot be opened ({error}); give a folder or an fsspec URL") from None
    if isinstance(files, LocalFileSystem):
        return LocalStorage(Path(path)), Path(path)
    folder = cache or expanded("~/.cache/fleetune")
    if not folder.is_absolute():
        raise Refused(
            f"store: root {root!r} needs a cache in the home of this user, who has none; set HOME to a folder"
        )
    if cache is None and not is_private(folder):
        raise Refused(
            f"store: root {root!r} needs a cache, but others could change what is in {folder}; set HOME to a folder of "
            "yours, which only you can write"
        )
    local = folder / hashlib.sha256(root.encode()).hexdigest()[:16]
    return RemoteStorage(files, path, local / "cache"), local


def _path(kind: str, digest: str) -> str:
    check_artifacts("store", {kind: digest})
    return f"artifacts/{kind}/{digest}"
