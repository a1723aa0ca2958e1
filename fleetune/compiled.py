"""Compiling functions of numbers to machine code, which is kept on disk between processes.

numba looks only at a function's own file to see whether the code it kept is still right, though it has compiled
functions of other files into it. So the code is kept under a digest of every file that holds compiled functions.
Division by zero gives infinities as in numpy, not errors: checks in inner loops cost time there and when compiling.
Compiled functions may not make arrays (`_nrt=False`): without counting references the event loop runs three times as
fast. What they need is handed in.
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

os.environ.setdefault("NUMBA_OPT", "1")  # measured: the event loop runs 1.5 times as fast as with the default, 3
os.environ.setdefault("NUMBA_CPU_NAME", "generic")  # as fast, compiled 2 s sooner, and kept code serves any machine
import numba
from numba.core import caching, event

F = TypeVar("F", bound=Callable[..., object])
_HERE = Path(__file__).parent
_ROOMS = ("clock", "solving")
"""Folders with compiled functions."""


class _NoCollecting(event.Listener):
    """While a function is compiled nothing is worth collecting, and looking for it takes an eighth of the time."""

    def __init__(self) -> None:
        self._depth, self._before = 0, False

    def on_start(self, event: object) -> None:
        """Compiling one function starts others."""
        if self._depth == 0:
            self._before = gc.isenabled()
            gc.disable()
        self._depth += 1

    def on_end(self, event: object) -> None:
        """Also where compiling failed."""
        self._depth -= 1
        if self._depth == 0 and self._before:
            gc.enable()


event.register("numba:compile", _NoCollecting())


def compiled(function: F) -> F:
    """The same function, compiled at its first call."""
    return cast(F, _kept(function))


def inner(function: F) -> F:
    """Compiled to be called by compiled functions only: without what Python needs to call it, compiling is quicker.
    A literal among the arguments makes a version of its own; give a variable where that is not worth its compiling."""
    return cast(
        F, numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy", _nrt=False)(function)
    )


def signed(signature: str) -> Callable[[F], F]:
    """Compiled for these types only, at once: literals make no versions."""

    def decorate(function: F) -> F:
        return cast(F, _kept(function, signature))

    return decorate


def _kept(function: Callable[..., object], *signature: str) -> Any:
    """Kept on disk; where no folder can be written (a read-only container without a home), compiled anew in every
    process."""
    folder = _folder()
    if folder is None:
        return numba.njit(*signature, error_model="numpy", nogil=True)(function)
    with _keeping_in(folder):
        return numba.njit(*signature, cache=True, error_model="numpy", nogil=True, _nrt=False)(function)


def _save_if_there_is_room(cache: caching.FunctionCache, *code: object) -> None:
    """What a full disk does not take is compiled anew in the next process."""
    with suppress(OSError):
        _save(cache, *code)


_save, caching.FunctionCache.save_overload = caching.FunctionCache.save_overload, _save_if_there_is_room


@contextmanager
def _keeping_in(folder: Path) -> Iterator[None]:
    """numba asks its configuration where to keep a function's code when it is decorated."""
    before = numba.config.CACHE_DIR
    if not before:
        numba.config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


_found: list[Path | None] = []


def _folder() -> Path | None:
    """Of this version's code, beside the source or in the user's cache; older versions beside it go."""
    if not _found:
        _found.append(_choose(f"compiled-{_digest()}", (_HERE / "__pycache__", *_users_cache())))
    return _found[0]


def _users_cache() -> tuple[Path, ...]:
    """Where a user's programs may keep what they can make again; nowhere for a user without a home."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return (Path(cache) / "fleetune",) if os.path.isabs(cache) else ()


def _choose(name: str, parents: Sequence[Path]) -> Path | None:
    """The first folder called so that can be written to, None where none can.

    numba uses no folder that it cannot write to. So where one has been filled but cannot be written (in an image, or
    mounted read-only), what it holds is copied: in milliseconds, where compiling takes 15 s.
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
    """Whole or not at all: other processes may do the same, and the first to be done wins."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="copying-", ignore_cleanup_errors=True) as aside:
            copy = Path(aside) / folder.name
            for file in (path for path in filled.rglob("*") if path.is_file()):
                place = copy / file.relative_to(filled)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)  # without its mode, which may forbid writing
            copy.rename(folder)
    except OSError:
        return  # then it is compiled


def _made(folder: Path) -> bool:
    """Whether the folder is there and can be written to."""
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
    for path in sorted([Path(__file__), *(p for room in _ROOMS for p in (_HERE / room).rglob("*.py"))]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
