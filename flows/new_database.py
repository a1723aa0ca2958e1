"""New SQLite databases of Prefect's server, copied from one that was made before.

Prefect makes a database by all the migrations of its history, which takes 4 s of processor time at the first start in
every store. What they make depends on nothing but the releases of Prefect and SQLite: a database in which nothing else
has happened is kept beside this file's bytecode, which is as trusted and as easily made again.
"""

import shutil
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import prefect
from prefect.server.database.interface import PrefectDBInterface
from sqlalchemy.engine import make_url

from fleetune.filesystem import rename_durably

KEPT = Path(__file__).with_name("__pycache__") / f"prefect-{prefect.__version__}-sqlite-{sqlite3.sqlite_version}.db"

Migrate = Callable[[Any], Awaitable[None]]


def copy_new_databases() -> None:
    """Have the server of this process copy its database where there is none; call it before the server starts."""
    PrefectDBInterface.create_db = create  # type: ignore[assignment, method-assign]


async def create(server: Any, migrate: Migrate = PrefectDBInterface.create_db) -> None:
    """Migrate the server's database; where there is no file yet it is copied before, or kept for the next one after."""
    made = database_file(server.database_config.connection_url)
    is_kept = made is None or made.exists() or _copy(made)
    await migrate(server)
    if made is not None and not is_kept:
        _keep(made)


def database_file(url: str) -> Path | None:
    """The file of a SQLite database; None for another database, and one in memory."""
    found = make_url(url)
    if found.get_backend_name() != "sqlite" or not found.database or found.database.startswith((":", "file:")):
        return None
    return Path(found.database)


def _copy(made: Path) -> bool:
    """Copy the kept database, whole or not at all; False where there is none, or only a damaged one."""
    with suppress(OSError, sqlite3.Error), tempfile.TemporaryDirectory(dir=made.parent, prefix=".new-") as folder:
        copy = shutil.copyfile(KEPT, Path(folder) / made.name)
        with closing(sqlite3.connect(copy)) as database:  # a power cut may have left parts of it only
            is_whole = database.execute("PRAGMA quick_check").fetchone() == ("ok",)
            is_migrated = database.execute("SELECT count(*) FROM alembic_version").fetchone() == (1,)
        if is_whole and is_migrated:
            rename_durably(copy, made)
            return True
    return False


def _keep(made: Path) -> None:
    """Keep a copy of a database, where this user may write beside the code."""
    with suppress(OSError, sqlite3.Error):
        KEPT.parent.mkdir(exist_ok=True)  # where Python writes no bytecode there is none
        with tempfile.TemporaryDirectory(dir=KEPT.parent, prefix="prefect-") as folder:
            copy = Path(folder) / KEPT.name
            with closing(sqlite3.connect(made)) as database:
                database.execute("VACUUM INTO ?", (str(copy),))
            rename_durably(copy, KEPT)
