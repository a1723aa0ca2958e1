"""The mark that a user's home gives the files of Prefect in a store: `STORE/prefect/made-here`.

A store that somebody hands over brings such files along. Its giver knows the password, and the database and what else
lies there name programs that a service runs; a run by the command line has its own server and password, and runs none
of them. Only who has a key that lies in this user's home can make the mark. It is one of two things of which one may
change: the folder's path, as when a store is renamed, and its number on its disk, as when a backup is put back.
"""

import hmac
import os
import secrets
import threading
from contextlib import suppress
from pathlib import Path

from fleetune.errors import Refused
from fleetune.filesystem import expanded, write_durably
from fleetune.library_sources import is_private
from fleetune.linux import read_text
from fleetune.store import Lock

FILE, KEY = "made-here", "store-key"
MACHINE = Path("/etc/machine-id")
MOST_BYTES, MOST_MARKS = 1000, 12


def is_made_here(home: Path) -> bool:
    """True unless others have made what lies in a store's folder of Prefect's files, which may not exist.

    Locks alone are left there by runs that have another server.
    """
    return bool({*_read(home).split()} & {*_marks(home)}) or not any(map(_is_file, home.rglob("*")))


def check_made_here(home: Path) -> None:
    """Refuse what lies in a store's folder of Prefect's files unless this user has made it."""
    if is_made_here(home):
        return
    first = (
        ""
        if _marks(home)
        else f"let XDG_STATE_HOME name a folder in which you can keep a key, as {_folder()} is none; then "
    )
    raise Refused(
        f"{home}: programs are run by what is in it, and no mark tells that you have made it there; if you know that "
        f"it is yours, of an older version, a copy, or with another home, {first}take it over: fleetune up --adopt, "
        "with the --root of this store; else move that folder away, and a new one is made (runs stay)"
    )


def mark_made_here(home: Path) -> None:
    """Mark a store's folder of Prefect's files as this user's; it stays that of other homes that have marked it, of
    which each knows its own."""
    marks = _marks(home)
    others = [mark for mark in _read(home).split() if len(mark) == len(marks[0]) and mark not in marks] if marks else []
    text = " ".join([*marks, *others][:MOST_MARKS])
    if text and not {*marks} <= {*_read(home).split()}:
        write_durably(text.encode(), home / FILE, mode=0o600)


def _is_file(path: Path) -> bool:
    """True for a file or link, other than a lock and the hidden ones of a process that is marking the folder now."""
    return path.suffix != ".lock" and not path.name.startswith(".") and (path.is_symlink() or not path.is_dir())


def _read(home: Path) -> str:
    """The mark that is there; empty for none. It may be anything: it is read before anything is believed."""
    with suppress(OSError, UnicodeDecodeError):
        file = os.open(home / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(file, "rb") as opened:
            return opened.read(MOST_BYTES).decode("ascii")
    return ""


def _marks(home: Path) -> tuple[str, ...]:
    """The marks of a folder, by its path and by its number; none where there is none, or this user can keep no key."""
    if not home.is_dir():
        return ()
    key, facts = _key(), (f"path {home.resolve()}", f"number {home.stat().st_ino}")
    return tuple(hmac.digest(key, os.fsencode(fact), "sha256").hex() for fact in facts) if key else ()


def _folder() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or expanded("~/.local/state"), "fleetune")


def _key() -> bytes:
    """The key in this user's home, made when there is none; where a home keeps nothing, that of this machine, which
    nobody elsewhere knows; empty where there is neither."""
    folder = _folder()
    with suppress(OSError):
        if folder.is_absolute():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_private(folder):
            if not (folder / KEY).exists():
                _make_key(folder)
            return (folder / KEY).read_bytes()
    return read_text(MACHINE).strip().encode()


def _make_key(folder: Path) -> None:
    with Lock(folder / f"{KEY}.lock", threading.Event().wait, brief=True):
        if not (folder / KEY).exists():
            write_durably(secrets.token_hex(32).encode(), folder / KEY, mode=0o600)
