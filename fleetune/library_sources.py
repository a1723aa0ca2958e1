"""What libraries would read of the working directory, and where they would keep caches: both are closed to others.

The working directory may be a folder of data that somebody else has made. Files in it are data, even those that a
library takes for its settings (which run commands, send keys elsewhere, or load pickles), and no module is imported
from it. Libraries with a setting for this get it by the environment, which processes inherit. Of the others the names
of these files are replaced while they are imported, by a name that no file can have: so whatever reads them finds none,
now and later. `fleetune/__init__.py` closes them first of all, in each process.
"""

import atexit
import grp
import os
import pwd
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

NOWHERE = "/proc/self/no-settings"
"""Nobody can make a file there."""
FILES: Mapping[str, tuple[str, ...]] = {
    "numba.core.config": (".numba_config.yaml",),
    "prefect.settings.base": (".env", "prefect.toml"),
    "prefect.settings.sources": (".env", "prefect.toml", "pyproject.toml"),
    "wandb.sdk.wandb_config": ("config-defaults.yaml",),
    "wandb.sdk.wandb_settings": ("settings",),  # in `wandb` below the working directory
    "alembic.config": ("prepend_sys_path",),  # a setting: Prefect's puts the working directory before all packages
}
"""Module -> names of files, as its code has them, that it looks for in the working directory."""
FUNCTIONS: Mapping[str, Mapping[str, Callable[[str], ModuleType]]] = {
    "prefect.utilities.importtools": {"load_module": import_module},  # its own puts that folder before all packages
}
"""Module -> names of functions in it that use the working directory -> what stands in for them."""
SETTINGS = {"WANDB_DISABLE_GIT": "true"}  # else it runs git in the working directory, whose settings name programs
CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",  # else below /tmp, under a name that all can tell
    "NUMBA_CACHE_DIR": None,
    "TRITON_CACHE_DIR": None,
    "TORCH_EXTENSIONS_DIR": None,
}
"""Variable of a cache of code -> name of its folder, None where the library's own choice lies in the home."""


def close(environment: MutableMapping[str, str] = os.environ) -> None:
    """Close all of them for this process and those that it starts; repeatable.

    Caches that the environment names are used if nobody else can change them.
    """
    if not any(isinstance(finder, _Closing) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Closing())
    environment.update(SETTINGS)
    for variable, name in CACHES.items():
        given = environment.get(variable)
        if given is not None and not is_private(Path(given)):
            del environment[variable]
        if name is not None and variable not in environment:
            environment[variable] = str(private_cache(environment) / name)


def users_cache(environment: Mapping[str, str] = os.environ) -> Path | None:
    """This project's folder in the user's cache; None for a user without a home, and where others could change it."""
    folder = Path(environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "fleetune")
    return folder if is_private(folder) else None


def private_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Return a folder for caches that nobody else can change: the user's, else one below that of temporary files;
    NOWHERE if that cannot be written either."""
    found = users_cache(environment)
    if found is not None and os.access(next(each for each in (found, *found.parents) if each.exists()), os.W_OK):
        return found
    try:
        folder = Path(tempfile.gettempdir(), f"fleetune-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        if is_private(folder) and not folder.is_symlink():
            return folder
        made = Path(tempfile.mkdtemp(prefix="fleetune-"))  # somebody was first to take that name
        atexit.register(shutil.rmtree, made, ignore_errors=True)
        return made
    except OSError:
        return Path(NOWHERE)


def is_private(path: Path) -> bool:
    """Return whether only this user, and root, can change what is, or will be, at a path; False for a relative one.

    A folder like /tmp above it does no harm: all may write there, but none may rename what others have.
    """
    try:
        return path.is_absolute() and all(_is_guarded(each) for each in {path, path.resolve()})
    except (OSError, RuntimeError):  # RuntimeError: links that lead in a circle
        return False


def _is_guarded(path: Path) -> bool:
    there = [place for place in (path, *path.parents) if place.exists()]
    for number, place in enumerate(there):
        facts = place.stat()
        if facts.st_uid not in (os.getuid(), 0) or (place == path and facts.st_uid != os.getuid()):
            return False
        if facts.st_mode & stat.S_ISVTX and number:  # what lies in it was seen to be of this user
            continue
        if facts.st_mode & stat.S_IWOTH or (facts.st_mode & stat.S_IWGRP and not _is_own_group(facts.st_gid)):
            return False
    return True


def _is_own_group(group: int) -> bool:
    """True for a group of which nobody else is a member, such as many systems make for each user."""
    with suppress(KeyError):
        user, found = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(group)
        return found.gr_name == user and {*found.gr_mem} <= {user}
    return False


class _Closing(MetaPathFinder):
    """Finds the modules that have such names."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find one as Python would, and have it loaded without them."""
        if name not in FILES and name not in FUNCTIONS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Closed(name, spec.origin)
        return spec


class _Closed(SourceFileLoader):
    """Loads a module with other constants."""

    def get_code(self, fullname: str) -> CodeType | None:
        """The module's code, be it from its source or its bytecode."""
        code = super().get_code(fullname)
        return None if code is None else _without(code, frozenset(FILES.get(fullname, ())))

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, and put what stands in for its functions in their place."""
        super().exec_module(module)
        vars(module).update(FUNCTIONS.get(module.__name__, {}))


def _without(code: CodeType, names: frozenset[str]) -> CodeType:
    """The code with NOWHERE for these constants, at all depths."""

    def replaced(constant: object) -> object:
        if isinstance(constant, CodeType):
            return _without(constant, names)
        return NOWHERE if isinstance(constant, str) and constant in names else constant

    return code.replace(co_consts=tuple(map(replaced, code.co_consts)))
