"""Durable writes and renames, digests of files, full disks in words, and symbolic links that leave a folder."""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from fleetune import exposed_folders
from fleetune.errors import Refused, TryAgain
from fleetune.formatting import size

STORE, TEMPORARY, CACHE, OUTPUT = "runs and artifacts", "temporary files", "caches", "output"
_ADVICE = {
    STORE: "make room there or give another folder with --root",
    TEMPORARY: "make room there or set TMPDIR to another folder",
    OUTPUT: "make room there or give another file",
    CACHE: "make room there or set XDG_CACHE_HOME and HF_HOME to other folders",
}
_NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_SAID = re.compile(
    rf"(?P<{errno.errorcode[errno.ENOSPC]}>no space left on device|os error {errno.ENOSPC}\b|disk is full)"
    rf"|(?P<{errno.errorcode[errno.EDQUOT]}>quota exceeded|os error {errno.EDQUOT}\b)"
    rf"|(?P<{errno.errorcode[errno.EROFS]}>read-only file system|os error {errno.EROFS}\b|readonly database)",
    re.IGNORECASE,
)
"""Messages of libraries that wrap system errors in their own text (safetensors, pyarrow, sqlite)."""
FULL_BYTES = 1 << 20
"""A disk with fewer free bytes than this counts as full."""


def folders(store: str | Path | None = None) -> dict[str, Path]:
    """Purpose -> folder that this process writes to; these disks are checked when an error names none."""
    caches = os.environ.get("HF_HOME") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    found = {TEMPORARY: Path(os.environ.get("TMPDIR") or "/tmp"), CACHE: expanded(caches)}
    with suppress(OSError):
        if stat.S_ISREG(os.fstat(1).st_mode):  # stdout goes to a file
            found[OUTPUT] = Path(os.readlink("/proc/self/fd/1"))
    return found if store is None else {STORE: Path(store), **found}


def expanded(path: str | Path) -> Path:
    """The path with its `~` replaced by the home that it names; a path of a user without a home stays as it is."""
    return Path(os.path.expanduser(path))


def check_utf8(owner: str, text: str) -> None:
    """Refuse text, such as a path, whose bytes are not UTF-8: no JSON, which records and messages are, can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text[: error.start].rpartition("\n")[2] + text[error.start :].partition("\n")[0]
        raise Refused(f"{owner}: {ascii(line.strip())} is not UTF-8; give the file or folder another name") from None


def check_home() -> None:
    """Refuse to go on for a user without a home, as in a container that has another user: libraries want to know it."""
    if not expanded("~").is_absolute():
        raise Refused("this user has no home: HOME is not set, and no account names one; set HOME to a folder of yours")


def disk_error(error: BaseException, used: Mapping[str, Path]) -> TryAgain | None:
    """Return the TryAgain for an `error` that a full, read-only or over-quota disk caused; None for other errors.

    `used` maps purposes to folders, as `folders` returns them. Causes and contexts of the error are examined too.
    """
    chain = list(_chain(error))
    number = next((code for one in chain if (code := _number(one)) is not None), None)
    if number is None:
        return None
    named = [Path(os.fsdecode(name)) for one in chain if isinstance(one, OSError) for name in _names(one)]
    folder, purpose = _culprit(number, named, used)
    return TryAgain(f"{_state(number, folder)}: {_ADVICE.get(purpose, 'make room there')}, then start again")


def find_full_disk(used: Mapping[str, Path]) -> TryAgain | None:
    """Return the error for the first of these folders whose disk is full; None if every disk has room."""
    for purpose, folder in used.items():
        if _is_full(errno.ENOSPC, folder):
            return disk_error(OSError(errno.ENOSPC, "", str(folder)), {purpose: folder})
    return None


def sync(path: Path) -> None:
    """Wait until the content of a file, or the entries of a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):  # not every file system syncs folders
            raise
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Wait until every file and folder of a folder is on disk; its own name is not."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def write_durably(content: bytes, whole: Path, mode: int = 0o666) -> None:
    """Write a file, which appears whole or not at all and is on disk afterwards. A link at its place is replaced."""
    with exposed_folders.opened(whole.parent) as folder, exposed_folders.new_file(folder, whole.name, mode) as file:
        file.write(content)


def open_for_writing(path: Path, flags: int, mode: int) -> int:
    """Descriptor of a file that is made where there is none. Refused: a link, which may lead to any file."""
    try:
        return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise Refused(f"{path}: it is a link, through which nothing is written; delete it") from None


def rename_durably(part: Path, whole: Path) -> None:
    """Rename a file or folder within its disk once all of it is on disk; its new name is on disk afterwards."""
    if part.is_dir():
        sync_tree(part)
    else:
        sync(part)
    part.replace(whole)
    sync(whole.parent)


def file_digest(path: Path) -> str:
    """Return the sha256 of a file as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop(0)
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            todo += [one.__cause__, one.__context__, *(one.exceptions if isinstance(one, BaseExceptionGroup) else ())]


def _number(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno in _NUMBERS:
        return error.errno
    said = None if isinstance(error, OSError) and error.errno else _SAID.search(str(error))
    return int(getattr(errno, str(said.lastgroup))) if said else None


def _names(error: OSError) -> list[str | bytes]:
    return [name for name in (error.filename2, error.filename) if isinstance(name, str | bytes)]


def _culprit(number: int, named: list[Path], used: Mapping[str, Path]) -> tuple[Path, str]:
    """Return the path on the disk at fault, and its purpose.

    A path whose disk is full now, else the first path that the error names, else the first used folder: a partial file
    may already be deleted.
    """
    known = [(path, _purpose(path, used)) for path in named] + [(path, purpose) for purpose, path in used.items()]
    for path, purpose in known:
        if _is_full(number, path):
            return path, purpose
    return known[0]


def _purpose(path: Path, used: Mapping[str, Path]) -> str:
    """Purpose of the used folder that contains the path, else of one on the same disk, else empty."""
    place = Path(os.path.abspath(path))
    inside = [purpose for purpose, folder in used.items() if place.is_relative_to(os.path.abspath(folder))]
    same = [purpose for purpose, folder in used.items() if _mount(folder) == _mount(place)]
    return next(iter([*inside, *same]), "")


def _is_full(number: int, path: Path) -> bool:
    facts = os.statvfs(_there(path))
    if number == errno.EROFS:
        return bool(facts.f_flag & os.ST_RDONLY)
    return number == errno.ENOSPC and (_room(path)[0] < FULL_BYTES or _files_gone(facts))


def _files_gone(facts: os.statvfs_result) -> bool:
    return bool(facts.f_files) and not facts.f_favail


def _state(number: int, path: Path) -> str:
    room = free_space(path)
    path = path if path.is_dir() else _there(path.parent)
    disk = f"the disk of {path} (mounted at {_mount(path)}, {room})"
    if number == errno.EROFS:
        return f"{disk} is read-only"
    if number == errno.EDQUOT:
        return f"{disk} gives this user no more room (quota)"
    return f"{disk} takes no more files" if _files_gone(os.statvfs(_there(path))) else f"{disk} has no room for this"


def free_space(path: Path) -> str:
    """The room on the disk of a path, such as `8 MB free of 262 MB`."""
    free, total = _room(path)
    return f"{size(free)} free of {size(total)}"


def _room(path: Path) -> tuple[int, int]:
    """Bytes available to this user, and the disk's size in bytes."""
    facts = os.statvfs(_there(path))
    return facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize


def _there(path: Path) -> Path:
    """The path, or its nearest existing parent folder."""
    place = Path(os.path.abspath(path))
    return next(folder for folder in (place, *place.parents) if folder.exists())


def _mount(path: Path) -> Path:
    place = _there(path).resolve()
    return next(folder for folder in (place, *place.parents) if os.path.ismount(folder))


REPOSITORY = re.compile(r"(models|datasets|spaces)--.+")


def leaves_folder(path: Path, folder: Path) -> bool:
    """Return True if `path`, given below `folder`, resolves to a place outside of it.

    In the hub's cache every file of `models--NAME/snapshots/REVISION` is a link into `models--NAME/blobs`: those links
    are allowed.
    """
    whole, real = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    allowed = (whole, *(blobs for place in (whole, *whole.parents) if (blobs := _blobs(place)) is not None))
    return not any(real.is_relative_to(place) for place in allowed)


def check_symlinks(folder: Path, owner: str) -> None:
    """Refuse a folder that contains a symbolic link to a place outside of it; the message starts with `owner`."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and leaves_folder(path, folder):
            raise Refused(
                f"{owner}: {path} is a link to {os.path.realpath(path)}, outside of {folder}; put the file itself there"
            )


def _blobs(place: Path) -> Path | None:
    """The hub cache's folder with the files of the snapshot `place`; None if `place` is not a snapshot."""
    return place.parents[1] / "blobs" if is_hub_snapshot(place) else None


def is_hub_snapshot(place: Path) -> bool:
    """True for the folder of a commit in the hub's cache."""
    above = place.parents
    return len(above) > 1 and above[0].name == "snapshots" and bool(REPOSITORY.fullmatch(above[1].name))
