"""Where the store's bytes lie: a folder of this machine, or any other fsspec file system.

Both keep two promises: `write` replaces a file whole, and `adopt` makes `last` appear after everything else.
"""

import os
import shutil
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from fleetune.errors import TryAgain


class Place(Protocol):
    """A tree of files by relative path with forward slashes."""

    def read(self, path: str) -> bytes | None:
        """The bytes of a file; None when there is none."""

    def write(self, path: str, content: bytes) -> None:
        """Put a file there whole or not at all."""

    def names(self, path: str) -> list[str]:
        """Names directly under a folder; empty when there is none."""

    def adopt(self, folder: Path, path: str, last: str) -> None:
        """Move a local folder there; a folder that is already whole under that path stays."""

    def folder(self, path: str, files: Iterable[str]) -> Path:
        """A local folder with these files of `path`."""

    def remove(self, path: str) -> None:
        """Delete a folder; no error when there is none."""


class LocalPlace:
    """A folder of this machine: a folder appears by one rename."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, path: str) -> bytes | None:
        """See Place."""
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: str, content: bytes) -> None:
        """See Place."""
        whole = self.root / path
        whole.parent.mkdir(parents=True, exist_ok=True)
        part = whole.with_name(f".{whole.name}.{uuid.uuid4().hex}.part")
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(whole)

    def names(self, path: str) -> list[str]:
        """See Place."""
        try:
            return sorted(name for name in os.listdir(self.root / path) if not name.startswith("."))
        except FileNotFoundError:
            return []

    def adopt(self, folder: Path, path: str, last: str) -> None:
        """See Place. The folder is moved where it lies on the same disk, else copied beside its new name first."""
        whole = self.root / path
        whole.parent.mkdir(parents=True, exist_ok=True)
        staged = whole.with_name(f".{whole.name}.{uuid.uuid4().hex}.part")
        try:
            shutil.move(folder, staged)
            _flush(staged)
            staged.rename(whole)
        except OSError:
            if not (whole / last).exists():  # else another process was first
                raise
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def folder(self, path: str, files: Iterable[str]) -> Path:
        """See Place."""
        return self.root / path

    def remove(self, path: str) -> None:
        """See Place. It is gone at once, not file by file."""
        whole = self.root / path
        doomed = whole.with_name(f".{whole.name}.{uuid.uuid4().hex}.part")
        with suppress(FileNotFoundError):
            whole.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


class RemotePlace:
    """Any other fsspec file system; files read are kept in a local cache."""

    def __init__(self, files: Any, root: str, cache: Path) -> None:
        self._files = files
        self._root = root.rstrip("/")
        self._cache = LocalPlace(cache)

    def read(self, path: str) -> bytes | None:
        """See Place."""
        try:
            content: bytes = self._files.cat_file(self._at(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise TryAgain(f"{self._at(path)}: cannot be read ({error}); check the store and run again") from None
        return content

    def write(self, path: str, content: bytes) -> None:
        """See Place."""
        self._files.makedirs(self._at(path).rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(self._at(path), content)

    def names(self, path: str) -> list[str]:
        """See Place."""
        self._files.invalidate_cache()
        try:
            found = self._files.ls(self._at(path), detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(name).rstrip("/").rpartition("/")[2] for name in found)

    def adopt(self, folder: Path, path: str, last: str) -> None:
        """See Place. `last` is sent after every other file has arrived."""
        names = [str(file.relative_to(folder)) for file in sorted(folder.rglob("*")) if file.is_file()]
        for name in sorted(names, key=lambda name: name == last):
            self._files.makedirs(self._at(f"{path}/{name}").rpartition("/")[0], exist_ok=True)
            self._files.put_file(str(folder / name), self._at(f"{path}/{name}"))
        self._cache.adopt(folder, path, last)

    def folder(self, path: str, files: Iterable[str]) -> Path:
        """See Place. Files already in the cache are not fetched again."""
        for name in files:
            local = self._cache.root / path / name
            if not local.exists():
                local.parent.mkdir(parents=True, exist_ok=True)
                part = local.with_name(f".{local.name}.{uuid.uuid4().hex}.part")
                self._files.get_file(self._at(f"{path}/{name}"), str(part))
                part.replace(local)
        return self._cache.root / path

    def remove(self, path: str) -> None:
        """See Place."""
        self._cache.remove(path)
        if self._files.exists(self._at(path)):
            self._files.rm(self._at(path), recursive=True)

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"


def _flush(folder: Path) -> None:
    """Have the disk keep every file of a folder before the folder gets its name."""
    for file in folder.rglob("*"):
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
