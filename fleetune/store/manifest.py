"""Manifests of artifacts, key records of stages, and digests of files. Times are ISO 8601 in UTC."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from fleetune.contracts.record import check_digest, check_file_name, check_name, distinct, not_negative, record
from fleetune.errors import Refused
from fleetune.filesystem import file_digest

SCHEMA = 1
MANIFEST = "manifest.json"
DIGEST_DIGITS, SHA256_DIGITS = 32, 64
FileMarks = tuple[int, int, int, int]
"""Inode, size, and when a file was written and changed, in ns."""
THREADS_FROM_BYTES = 8 << 20
"""Artifacts of at least so many bytes are hashed by several threads."""


@record
class FileEntry:
    """One file of an artifact."""

    path: str
    """Relative to the artifact, with forward slashes."""
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        check_file_name("artifact", self.path)
        check_digest(f"file {self.path}: sha256", self.sha256, SHA256_DIGITS)
        not_negative(f"file {self.path}", bytes=self.bytes)


@record
class Manifest:
    """`manifest.json` of an artifact: its files, and the stage and inputs that produced it."""

    kind: str
    schema: int = SCHEMA
    files: tuple[FileEntry, ...]
    stage_key: str
    """Key of the stage that produced the artifact."""
    inputs: dict[str, str]
    """kind -> digest of the stage's inputs"""
    created: str

    def __post_init__(self) -> None:
        check_name("manifest", self.kind)
        check_name("manifest: stage_key", self.stage_key)
        check_artifacts("manifest: inputs", self.inputs)
        _check_paths(f"artifact of kind {self.kind}", [file.path for file in self.files])


@record
class KeyRecord:
    """`keys/STAGE_KEY.json`: the artifacts that a stage key stands for, written after all of them."""

    stage: str
    run: str
    """The run that produced the outputs."""
    outputs: dict[str, str]
    """kind -> digest"""
    ingredients: dict[str, str]
    """Name -> value of everything that the key hashes."""

    def __post_init__(self) -> None:
        check_name("key record: stage", self.stage)
        check_name("key record: run", self.run)
        check_artifacts("key record: outputs", self.outputs)


def check_artifacts(owner: str, found: Mapping[str, str]) -> None:
    """Refuse kinds and digests that cannot name an artifact's folder; `found` maps kinds to digests."""
    for kind, digest in found.items():
        check_name(owner, kind)
        check_digest(f"{owner}: {kind}", digest, DIGEST_DIGITS)


def _check_paths(owner: str, paths: Iterable[str]) -> None:
    """Refuse paths that cannot coexist: repeated, below another file, or equal to the manifest's."""
    files = [MANIFEST, *paths]
    distinct(owner, "file", files)
    known = set(files)
    for path in files:
        parts = path.split("/")
        for count in range(1, len(parts)):
            if (above := "/".join(parts[:count])) in known:
                raise Refused(f"{owner}: file {path!r} would lie inside of file {above!r}; names must differ")


def list_files(folder: Path) -> tuple[FileEntry, ...]:
    """List every file below a folder, sorted by path. Refused: anything but plain files and folders."""
    found = []
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            continue
        if path.is_symlink() or not path.is_file():
            raise Refused(f"{path}: an artifact holds plain files only; write a copy of it instead")
        found.append(
            FileEntry(path=path.relative_to(folder).as_posix(), bytes=path.stat().st_size, sha256=file_digest(path))
        )
    return tuple(sorted(found, key=lambda entry: entry.path))


def file_marks(folder: Path) -> tuple[dict[str, FileMarks], Path | None]:
    """Return what shows that a file below a folder was touched, by its path there, and the first link: the folder
    itself, or anything below it; None without one."""
    if folder.is_symlink():
        return {}, folder
    found: dict[str, FileMarks] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            return found, path
        if not path.is_dir():
            now = path.lstat()
            name = path.relative_to(folder).as_posix()
            found[name] = (now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
    return found, None


def first_fault(folder: Path, manifest: Manifest) -> str:
    """Hash the files of an artifact in threads and describe the first that is not what was stored; empty if none is.

    Hashing releases the interpreter lock, so every core reads and hashes a file of its own.
    """

    def fault(entry: FileEntry) -> str:
        path = folder / entry.path
        if path.is_symlink() or not path.is_file():
            return f"{path}: file of the {manifest.kind} artifact is missing"
        if path.stat().st_size != entry.bytes or file_digest(path) != entry.sha256:
            return f"{path}: file of the {manifest.kind} artifact is corrupt, its content is not what was stored"
        return ""

    if sum(entry.bytes for entry in manifest.files) < THREADS_FROM_BYTES:
        return next(filter(None, map(fault, manifest.files)), "")
    from concurrent.futures import ThreadPoolExecutor  # only where files are large

    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    try:
        return next(filter(None, pool.map(fault, manifest.files)), "")
    finally:
        pool.shutdown(cancel_futures=True)


def content_digest(files: Iterable[FileEntry]) -> str:
    """Return an artifact's digest: 32 hex digits over the paths and hashes of its files."""
    whole = hashlib.sha256()
    for entry in sorted(files, key=lambda entry: entry.path):
        whole.update(f"{entry.path}\0{entry.sha256}\n".encode())
    return whole.hexdigest()[:32]
