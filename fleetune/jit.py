"""Decorators that compile functions with numba and cache the machine code on disk.

numba invalidates cached code only by the function's own file, although it inlines functions of other files. The cache
folder is therefore named by a digest of all files with compiled functions. Division by zero gives infinities as in
numpy, because checks in inner loops cost run time and compile time. Compiled functions cannot allocate arrays
(`_nrt=False`), so callers pass all arrays in: without reference counting the event loop runs three times as fast.
"""

import gc
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

os.environ.setdefault("NUMBA_OPT", "1")  # measured: the event loop runs 1.5 times as fast as with the default 3
os.environ.setdefault("NUMBA_CPU_NAME", "generic")  # as fast, compiles 2 s faster, and cached code runs on any machine
import numba
from numba.core import caching, event

from fleetune.filesystem import rename_durably
from fleetune.library_sources import private_cache

F = TypeVar("F", bound=Callable[..., object])
_HERE = Path(__file__).parent
_COMPILED_PACKAGES = ("clock", "solving")
"""Packages with compiled functions."""


class _Compilations(event.Listener):
    """Turns the garbage collector off while numba compiles, where it takes an eighth of the time, and tells of it."""

    def __init__(self) -> None:
        self._depth, self._before = 0, False
        self.tell: Callable[[], None] | None = None
        """Called before the next compilation, once."""

    def on_start(self, event: object) -> None:
        """Count nested compilations."""
        if self._depth == 0:
            self._before = gc.isenabled()
            gc.disable()
        self._depth += 1
        tell, self.tell = self.tell, None
        if tell is not None:
            tell()

    def on_end(self, event: object) -> None:
        """Restore the collector after the outermost compilation, failed or not."""
        self._depth -= 1
        if self._depth == 0 and self._before:
            gc.enable()


_compilations = _Compilations()
event.register("numba:compile", _compilations)


@contextmanager
def told_of_compilation(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` before the first function is compiled within this context; cached code is not."""
    _compilations.tell = tell
    try:
        yield
    finally:
        _compilations.tell = None


def compiled(function: F) -> F:
    """Compile a function at its first call, for any argument types."""
    return cast(F, _compile(function))


def inner(function: F) -> F:
    """Compile a function that only compiled functions call; without a Python wrapper it compiles faster.

    A literal argument compiles a separate version; pass a variable to avoid that.
    """
    return cast(
        F, numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy", _nrt=False)(function)
    )


def signed(signature: str) -> Callable[[F], F]:
    """Compile a function at once for one signature only, so that literals cause no further versions."""

    def decorate(function: F) -> F:
        return cast(F, _compile(function, signature))

    return decorate


def _compile(function: Callable[..., object], *signature: str) -> Any:
    """Compile and cache on disk; if no folder is writable (a read-only container), compile anew in every process."""
    folder = _folder()
    if folder is None:
        return numba.njit(*signature, error_model="numpy", nogil=True)(function)
    with _cache_in(folder):
        return numba.njit(*signature, cache=True, error_model="numpy", nogil=True, _nrt=False)(function)


def _save_unless_disk_is_full(cache: caching.FunctionCache, *code: object) -> None:
    """Ignore a full disk: the next process compiles again."""
    with suppress(OSError):
        _save(cache, *code)


_save, caching.FunctionCache.save_overload = caching.FunctionCache.save_overload, _save_unless_disk_is_full


@contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    """Set numba's cache folder, which it reads when a function is decorated."""
    before = numba.config.CACHE_DIR
    if not before:
        numba.config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


_found: list[Path | None] = []


def _folder() -> Path | None:
    """Cache folder for this version's code, beside the source or in the user's cache; deletes older versions'."""
    if not _found:
        _found.append(choose_folder(f"compiled-{_digest()}", (_HERE / "__pycache__", private_cache())))
    return _found[0]


def choose_folder(name: str, parents: Sequence[Path]) -> Path | None:
    """Return the first writable folder called `name` below `parents`; None if there is none.

    numba ignores folders that it cannot write to. If one with cached code is read-only (in an image or a mount),
    its content is copied to the writable one: milliseconds instead of 15 s of compiling.
    """
    filled: Path | None = None
    for folder in (parent / name for parent in parents):
        if filled is not None and not folder.exists():
            _copy(filled, folder)
        if _made(folder):
            return folder
        if filled is None and folder.is_dir():
            filled = folder
    return None


def _copy(filled: Path, folder: Path) -> None:
    """Copy a folder atomically; of several processes the first wins."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="copying-", ignore_cleanup_errors=True) as aside:
            copy = Path(aside) / folder.name
            for file in (path for path in filled.rglob("*") if path.is_file()):
                place = copy / file.relative_to(filled)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)  # without its mode, which may be read-only
            rename_durably(copy, folder)
    except OSError:
        return  # numba compiles instead


def _made(folder: Path) -> bool:
    """Create a folder, delete those of older versions, and return True if it is writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    if not os.access(folder, os.W_OK):
        return False
    for old in folder.parent.glob("compiled-*"):
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)
    return True


def _digest() -> str:
    digest = hashlib.sha256()
    compiled_files = (path for package in _COMPILED_PACKAGES for path in (_HERE / package).rglob("*.py"))
    for path in sorted([Path(__file__), *compiled_files]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
