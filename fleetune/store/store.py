"""The store: artifacts by content, keys by what made them, work folders, locks.

artifacts/KIND/DIGEST/...  and manifest.json    written whole
keys/STAGE_KEY.json                             written after the artifacts it names
runs/RUN_ID/run.json                            see runs.py
work/STAGE_KEY/                                 outlives an interrupted attempt; local
cache/STAGE/                                    what a stage keeps from run to run; local
locks/NAME.lock                                 local
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from fleetune.contracts import wire
from fleetune.errors import Refused
from fleetune.store.hashing import content_digest, entries, file_digest
from fleetune.store.lock import Lock
from fleetune.store.places import LocalPlace, Place, RemotePlace
from fleetune.store.records import MANIFEST, FileEntry, KeyRecord, Manifest, artifacts
from fleetune.store.runs import RunBook

WRITTEN = ("artifacts/*", "keys", "runs/*", "cache/*")
"""Folders that the store writes into, as patterns."""
Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The default clock of a store."""
    return datetime.now(UTC)


class Store:
    """Artifacts, keys and run records under one root; safe for several processes at once."""

    def __init__(self, root: str | Path, *, cache: Path | None = None, clock: Clock = utc_now) -> None:
        """`root` is a folder or an fsspec URL; `cache` is where a remote store keeps local copies, work and locks."""
        self.root = str(root)
        self.place, self.local = _open(str(root), cache)
        self.clock = clock
        self.runs = RunBook(self.place, self.local)

    def put(self, kind: str, folder: Path, *, stage_key: str, inputs: Mapping[str, str]) -> str:
        """Move a local folder into the store as an artifact; its digest. The folder is gone afterwards.

        Refused when the folder is empty or holds anything but plain files.
        """
        if not folder.is_dir():
            raise Refused(f"{folder}: not a folder; an artifact of kind {kind} is a folder of files")
        files = tuple(entry for entry in entries(folder) if entry.path != MANIFEST)
        if not files:
            raise Refused(f"{folder}: it is empty; an artifact of kind {kind} needs at least one file")
        digest = content_digest(files)
        if self.has(kind, digest):
            if not self.first_bad(kind, digest):
                shutil.rmtree(folder)
                return digest
            self.place.remove(_path(kind, digest))
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)  # libraries keep files to their owner; stages may be others
        manifest = Manifest(
            kind=kind, files=files, stage_key=stage_key, inputs=dict(inputs), created=self.clock().isoformat()
        )
        wire.write(manifest, folder / MANIFEST)
        self.place.adopt(folder, _path(kind, digest), MANIFEST)
        return digest

    def manifest(self, kind: str, digest: str) -> Manifest:
        """What an artifact holds; Refused when it is not in the store."""
        return self._manifest(kind, digest)[0]

    def _manifest(self, kind: str, digest: str) -> tuple[Manifest, FileEntry]:
        """The manifest, and itself as a file."""
        path = f"{_path(kind, digest)}/{MANIFEST}"
        content = self.place.read(path)
        if content is None:
            raise Refused(f"{self.root}/{path}: no such artifact; run the stage that makes {kind} again")
        itself = FileEntry(path=MANIFEST, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        return wire.parse(Manifest, content, f"{self.root}/{path}"), itself

    def has(self, kind: str, digest: str) -> bool:
        """Whether an artifact is there, whole; its content is not looked at (see verify)."""
        return self.place.read(f"{_path(kind, digest)}/{MANIFEST}") is not None

    def folder(self, kind: str, digest: str) -> Path:
        """A local folder with the artifact, to be read only; fetched first when the store is remote."""
        manifest, itself = self._manifest(kind, digest)
        if manifest.kind != kind or content_digest(manifest.files) != digest:
            path = f"{self.root}/{_path(kind, digest)}/{MANIFEST}"
            raise Refused(f"{path}: the manifest of the {kind} artifact is corrupt, it does not give its digest")
        return self.place.folder(_path(kind, digest), [*manifest.files, itself])

    def verify(self, kind: str, digest: str) -> None:
        """Hash every file again; Refused naming the first that is missing, changed or too many."""
        bad = self.first_bad(kind, digest)
        if bad:
            raise Refused(f"{bad}; delete the artifact's folder and run again to make it anew")

    def first_bad(self, kind: str, digest: str) -> str:
        """What is wrong with an artifact, of which every file is hashed again; '' for nothing."""
        try:
            manifest = self.manifest(kind, digest)
            folder = self.folder(kind, digest) if isinstance(self.place, LocalPlace) else self._fetched(kind, digest)
        except Refused as error:
            return str(error)
        for entry in manifest.files:
            path = folder / entry.path
            if path.is_symlink() or not path.is_file():
                return f"{path}: file of the {kind} artifact is missing"
            if path.stat().st_size != entry.bytes or file_digest(path) != entry.sha256:
                return f"{path}: file of the {kind} artifact is corrupt, its content is not what was stored"
        listed = {entry.path for entry in manifest.files} | {MANIFEST}
        odd = sorted({p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} - listed)
        return f"{folder / odd[0]}: file was added to the {kind} artifact" if odd else ""

    def _fetched(self, kind: str, digest: str) -> Path:
        """The artifact as it lies in a remote store now, past the local copies."""
        shutil.rmtree(self.local / "cache" / _path(kind, digest), ignore_errors=True)
        return self.folder(kind, digest)

    def keep_key(self, key: str, record: KeyRecord) -> None:
        """Write a key record; Refused while one of its artifacts is not in the store."""
        for kind, digest in record.outputs.items():
            self.manifest(kind, digest)
        self.place.write(f"keys/{key}.json", wire.text(record).encode())

    def key(self, key: str) -> KeyRecord | None:
        """What a stage key stands for; None when no stage with that key has ended."""
        content = self.place.read(f"keys/{key}.json")
        return None if content is None else wire.parse(KeyRecord, content, f"{self.root}/keys/{key}.json")

    def find(self, key: str) -> dict[str, str] | None:
        """The outputs of a stage key, kind -> digest; None unless every one of them is really there."""
        record = self.key(key)
        if record is None or not all(self.has(kind, digest) for kind, digest in record.outputs.items()):
            return None
        return dict(record.outputs)

    def work(self, key: str) -> Path:
        """The local folder of an attempt at a stage key; what an interrupted attempt left is still in it."""
        folder = self.local / "work" / key
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def works(self) -> tuple[str, ...]:
        """Keys that have such a folder."""
        folder = self.local / "work"
        return tuple(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ()

    def drop_work(self, key: str) -> None:
        """Delete the folder of an attempt whose outputs are in the store."""
        shutil.rmtree(self.local / "work" / key, ignore_errors=True)

    def tidy(self) -> None:
        """Delete what killed processes left half-written; what a living one works at stays."""
        self.place.collect(WRITTEN)

    def cache(self, stage: str) -> Path:
        """The local folder that a stage keeps things in from run to run; it may not be there yet."""
        return self.local / "cache" / stage

    def lock(self, name: str, pause: Callable[[float], bool], waiting: Callable[[], None] = lambda: None) -> Lock:
        """The lock of a stage key or of anything else with a name; see Lock."""
        return Lock(self.local / "locks" / f"{name}.lock", pause, waiting)


def _open(root: str, cache: Path | None) -> tuple[Place, Path]:
    """The place a root names, and the local folder for work and locks."""
    if not re.search("://|::", root):
        local = Path(os.path.abspath(os.path.expanduser(root)))
        return LocalPlace(local), local
    import fsspec  # brings asyncio: only for stores that are elsewhere
    from fsspec.implementations.local import LocalFileSystem

    try:
        files, path = fsspec.core.url_to_fs(root)
    except (ValueError, ImportError) as error:
        raise Refused(f"store: root {root!r} cannot be opened ({error}); give a folder or an fsspec URL") from None
    if isinstance(files, LocalFileSystem):
        return LocalPlace(Path(path)), Path(path)
    local = (cache or Path.home() / ".cache" / "fleetune") / hashlib.sha256(root.encode()).hexdigest()[:16]
    return RemotePlace(files, path, local / "cache"), local


def _path(kind: str, digest: str) -> str:
    artifacts("store", {kind: digest})
    return f"artifacts/{kind}/{digest}"
