"""Digests of files and of whole folders."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from fleetune.errors import Refused
from fleetune.store.records import FileEntry


def file_digest(path: Path) -> str:
    """sha256 of a file, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def entries(folder: Path) -> tuple[FileEntry, ...]:
    """Every file of a folder in the order of its path; Refused where something is not a plain file."""
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


def content_digest(files: Iterable[FileEntry]) -> str:
    """32 hex digits over the paths and hashes of files; what it is called and who made it do not matter."""
    whole = hashlib.sha256()
    for entry in sorted(files, key=lambda entry: entry.path):
        whole.update(f"{entry.path}\0{entry.sha256}\n".encode())
    return whole.hexdigest()[:32]
