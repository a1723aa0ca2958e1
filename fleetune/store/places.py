"""Where the store's bytes lie: a folder of this machine, or any other fsspec file system.

Both keep three promises: `write` replaces a file whole, `adopt` makes `last` appear after everything else, and a
folder that could not be adopted is still where it was.
"""

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from fleetune.errors import Refused, TryAgain
from fleetune.store import parts
from fleetune.store.hashing import file_digest
from fleetune.store.records import FileEntry


class Place(Protocol):
    """A tree of files by relative path with forward slashes."""

    def read(self, path: str) -> bytes | None:
        """The bytes of a file; None when there is none."""

    def write(self, path: str, content: bytes) -> None:
        """Put a file there whole or not at all."""

    def names(self, path: str) -> list[str]:
        """Names directly under a folder; empty when there is none."""

    def adopt(self, folder: Path, path: str, last: str) -> None:
        """Move a local folder there; one that is already whole under that path stays. On an error it is not moved."""

    def folder(self, path: str, files: Iterable[FileEntry]) -> Path:
        """A local folder with these files of `path`; Refused for one that is fetched and is not what its entry says."""

    def remove(self, path: str) -> None:
        """Delete a folder; no error when there is none."""

    def collect(self, patterns: Iterable[str]) -> None:
        """Delete what killed processes left half-written in folders that match a glob pattern."""


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
        _make(whole.parent)
        with parts.new_file(whole) as part:
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(whole)
        parts.sync(whole.parent)

    def names(self, path: str) -> list[str]:
        """See Place."""
        try:
            return sorted(name for name in os.listdir(self.root / path) if not name.startswith("."))
        except FileNotFoundError:
            return []

    def adopt(self, folder: Path, path: str, last: str) -> None:
        """See Place. The folder is moved where it lies on the same disk, else copied beside its new name first."""
        whole = self.root / path
        _make(whole.parent)
        _flush(folder)
        with parts.held(folder):
            staged = parts.name_of(whole)
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
        parts.sync(whole.parent)

    def _adopt_copy(self, folder: Path, path: str, last: str) -> None:
        """From another disk: the folder is deleted when its copy has its name."""
        whole = self.root / path
        with parts.new_folder(whole) as staged:
            shutil.copytree(folder, staged, dirs_exist_ok=True)
            _flush(staged)
            self._name(staged, path, last)
        parts.sync(whole.parent)
        shutil.rmtree(folder)

    def _name(self, staged: Path, path: str, last: str) -> None:
        """Give a folder its name, unless another process was first; what has the name but no `last` makes way."""
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
        """See Place."""
        return self.root / path

    def remove(self, path: str) -> None:
        """See Place. It is gone at once, not file by file."""
        parts.discard(self.root / path)

    def collect(self, patterns: Iterable[str]) -> None:
        """See Place. What a living process works at stays."""
        for pattern in patterns:
            for folder in self.root.glob(pattern):
                parts.collect(folder)


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
        try:
            self._files.makedirs(self._at(path).rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(self._at(path), content)
        except OSError as error:
            raise self._unwritten(path, error) from None

    def names(self, path: str) -> list[str]:
        """See Place."""
        self._files.invalidate_cache()
        try:
            found = self._files.ls(self._at(path), detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(name).rstrip("/").rpartition("/")[2] for name in found)

    def adopt(self, folder: Path, path: str, last: str) -> None:
        """See Place. `last` is sent after every other file has arrived with as many bytes as were sent."""
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
        """See Place. Files already in the cache are not fetched again."""
        for entry in files:
            local = self._cache.root / path / entry.path
            if local.is_symlink() or not local.exists():
                self._prove_own(local)
                _make(local.parent)
                with parts.new_file(local) as part:
                    self._fetch(self._at(f"{path}/{entry.path}"), entry, part)
                    part.replace(local)
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

    def _prove_own(self, local: Path) -> None:
        """Refuse to write where a link among the copies leads."""
        for above in local.parents:
            if above == self._cache.root:
                return
            if above.is_symlink():
                raise Refused(f"{above}: a link stands among the local copies of a store; remove it")
        raise Refused(f"{local}: it lies outside of {self._cache.root}, the local copies of the store")

    def remove(self, path: str) -> None:
        """See Place."""
        self._cache.remove(path)
        if self._files.exists(self._at(path)):
            self._files.rm(self._at(path), recursive=True)

    def collect(self, patterns: Iterable[str]) -> None:
        """See Place. Of the local copies; another machine may be writing what is half there in the store itself."""
        self._cache.collect(patterns)

    def _unwritten(self, path: str, why: object, folder: Path | None = None) -> TryAgain:
        kept = f"; what was to be stored is still in {folder}" if folder else ""
        return TryAgain(f"{self._at(path)}: cannot be written ({why}); check the store and run again{kept}")

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"


def _make(folder: Path) -> None:
    """Make a folder and those above it, so that they outlive a power cut."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(exist_ok=True)
        parts.sync(folder.parent)


def _flush(folder: Path) -> None:
    """Have the disk keep every file and folder of a folder before the folder gets its name."""
    for path in (*folder.rglob("*"), folder):
        parts.sync(path)
