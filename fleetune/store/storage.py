"""Storage backends of the store: a local folder, or any fsspec file system.

Both guarantee that `write` replaces a file atomically, that `adopt` makes `last` appear after everything else, and that
a folder whose adoption failed is still at its old place.
"""

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from fleetune.errors import Refused, TryAgain
from fleetune.filesystem import file_digest, rename_durably, sync, sync_tree, write_durably
from fleetune.store import partial_files
from fleetune.store.manifest import FileEntry


class Storage(Protocol):
    """A tree of files by relative path with forward slashes."""

    def read(self, path: str) -> bytes | None:
        """Return the bytes of a file; None if it does not exist."""

    def write(self, path: str, content: bytes) -> None:
        """Write a file atomically."""

    def names(self, path: str) -> list[str]:
        """List the names directly under a folder; empty if it does not exist."""

    def adopt(self, folder: Path, path: str, last: str) -> None:
        """Move a local folder to `path`, unless a complete one is there. On an error it is not moved."""

    def folder(self, path: str, files: Iterable[FileEntry]) -> Path:
        """Return a local folder with these files of `path`. Refused: a fetched file that differs from its entry."""

    def remove(self, path: str) -> None:
        """Delete a folder; no error if it does not exist."""

    def collect(self, patterns: Iterable[str]) -> None:
        """Delete partial files that killed processes left in folders that match a glob pattern."""


class LocalStorage:
    """A folder of this machine; an adopted folder appears by one rename."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, path: str) -> bytes | None:
        """See Storage. Refused: a link, which may name any file of this machine."""
        whole = self.root / path
        try:
            with open(os.open(whole, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise Refused(f"{whole}: it is a link; a store holds plain files only, put the file itself there") from None

    def write(self, path: str, content: bytes) -> None:
        """See Storage."""
        whole = self.root / path
        _make(whole.parent)
        write_durably(content, whole)

    def names(self, path: str) -> list[str]:
        """See Storage."""
        try:
            return sorted(name for name in os.listdir(self.root / path) if not name.startswith("."))
        except FileNotFoundError:
            return []

    def adopt(self, folder: Path, path: str, last: str) -> None:
        """See Storage. On the same disk the folder is renamed, else it is copied beside its new name first."""
        whole = self.root / path
        _make(whole.parent)
        sync_tree(folder)
        with partial_files.locked(folder):
            staged = partial_files.part_path(whole)
            try:
                folder.rename(staged)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._adopt_copy(folder, path, last)
                return
            try:
                self._name(staged, path, last)
            except BaseException:
                if staged.exists():
                    staged.rename(folder)
                raise
        sync(whole.parent)

    def _adopt_copy(self, folder: Path, path: str, last: str) -> None:
        """Adopt a folder from another disk: it is deleted after its copy has the final name."""
        whole = self.root / path
        with partial_files.new_folder(whole) as staged:
            shutil.copytree(folder, staged, dirs_exist_ok=True)
            sync_tree(staged)
            self._name(staged, path, last)
        sync(whole.parent)
        shutil.rmtree(folder)

    def _name(self, staged: Path, path: str, last: str) -> None:
        """Rename a folder to `path` unless a complete one is there; an incomplete one without `last` is removed."""
        whole = self.root / path
        while True:
            try:
                staged.rename(whole)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            if (whole / last).exists():
                shutil.rmtree(staged)
                return
            self.remove(path)

    def folder(self, path: str, files: Iterable[FileEntry]) -> Path:
        """See Storage."""
        return self.root / path

    def remove(self, path: str) -> None:
        """See Storage. The folder disappears at once, not file by file."""
        partial_files.discard(self.root / path)

    def collect(self, patterns: Iterable[str]) -> None:
        """See Storage. Parts that a living process holds stay."""
        for pattern in patterns:
            for folder in self.root.glob(pattern):
                partial_files.collect(folder)


class RemoteStorage:
    """Any other fsspec file system, with a local cache of fetched files."""

    def __init__(self, files: Any, root: str, cache: Path) -> None:
        self._files = files
        self._root = root.rstrip("/")
        self._cache = LocalStorage(cache)

    def read(self, path: str) -> bytes | None:
        """See Storage."""
        try:
            content: bytes = self._files.cat_file(self._at(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise TryAgain(f"{self._at(path)}: cannot be read ({error}); check the store and run again") from None
        return content

    def write(self, path: str, content: bytes) -> None:
        """See Storage."""
        try:
            self._files.makedirs(self._at(path).rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(self._at(path), content)
        except OSError as error:
            raise self._unwritten(path, error) from None

    def names(self, path: str) -> list[str]:
        """See Storage."""
        self._files.invalidate_cache()
        try:
            found = self._files.ls(self._at(path), detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(name).rstrip("/").rpartition("/")[2] for name in found)

    def adopt(self, folder: Path, path: str, last: str) -> None:
        """See Storage. `last` is sent after every other file has arrived with its full size."""
        names = [file.relative_to(folder).as_posix() for file in sorted(folder.rglob("*")) if file.is_file()]
        for name in sorted(names, key=lambda name: name == last):
            there = self._at(f"{path}/{name}")
            try:
                self._files.makedirs(there.rpartition("/")[0], exist_ok=True)
                self._files.put_file(str(folder / name), there)
                arrived = self._files.size(there)
            except OSError as error:
                raise self._unwritten(f"{path}/{name}", error, folder) from None
            if arrived is not None and arrived != (folder / name).stat().st_size:
                raise self._unwritten(f"{path}/{name}", f"{arrived} bytes arrived", folder)
        self._cache.adopt(folder, path, last)

    def folder(self, path: str, files: Iterable[FileEntry]) -> Path:
        """See Storage. Cached files are not fetched again."""
        for entry in files:
            local = self._cache.root / path / entry.path
            if local.is_symlink() or not local.exists():
                self._check_cache_path(local)
                _make(local.parent)
                with partial_files.new_file(local) as part:
                    self._fetch(self._at(f"{path}/{entry.path}"), entry, part)
                    rename_durably(part, local)
        return self._cache.root / path

    def _fetch(self, there: str, entry: FileEntry, part: Path) -> None:
        corrupt = Refused(f"{there}: file of the store is corrupt, its content is not what was stored")
        try:
            if self._files.size(there) not in (entry.bytes, None):
                raise corrupt
            self._files.get_file(there, str(part))
        except FileNotFoundError:
            raise Refused(f"{there}: file of the store is missing") from None
        except OSError as error:
            raise TryAgain(f"{there}: cannot be fetched ({error}); check the store and run again") from None
        if part.stat().st_size != entry.bytes or file_digest(part) != entry.sha256:
            raise corrupt

    def _check_cache_path(self, local: Path) -> None:
        """Refuse a cache path that leads through a symbolic link or out of the cache."""
        for above in local.parents:
            if above == self._cache.root:
                return
            if above.is_symlink():
                raise Refused(f"{above}: it is a symbolic link in the local cache of a store; remove it")
        raise Refused(f"{local}: it lies outside of {self._cache.root}, the local copies of the store")

    def remove(self, path: str) -> None:
        """See Storage."""
        self._cache.remove(path)
        if self._files.exists(self._at(path)):
            self._files.rm(self._at(path), recursive=True)

    def collect(self, patterns: Iterable[str]) -> None:
        """See Storage. Only the local cache is cleaned: another machine may be writing to the store itself."""
        self._cache.collect(patterns)

    def _unwritten(self, path: str, why: object, folder: Path | None = None) -> TryAgain:
        kept = f"; what was to be stored is still in {folder}" if folder else ""
        return TryAgain(f"{self._at(path)}: cannot be written ({why}); check the store and run again{kept}")

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"


def _make(folder: Path) -> None:
    """Create a folder and its parents durably."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)
