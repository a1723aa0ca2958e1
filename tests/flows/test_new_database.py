"""New databases of Prefect's server."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from flows import new_database
from tests.support.filesystem.synced import recorded

MIGRATE = """
import asyncio
from pathlib import Path
from flows import new_database
new_database.KEPT = Path({kept!r})
new_database.copy_new_databases()
from prefect.server.database import provide_database_interface
asyncio.run(provide_database_interface().create_db())
"""


def migrated(home: Path, kept: Path) -> list[str]:
    """All that is in a database which a server in `home` has made: every statement that would make it again."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    home.mkdir(exist_ok=True)
    subprocess.run(
        [sys.executable, "-c", MIGRATE.format(kept=str(kept))],
        env={**environment, "PREFECT_HOME": str(home)},
        check=True,
    )
    with closing(sqlite3.connect(home / "prefect.db")) as database:
        return list(database.iterdump())


def migrate_to(path: Path, mark: str) -> None:
    """Make a database of some pages that counts as migrated, with a table of this name."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE alembic_version (version_num)")
        database.execute("INSERT INTO alembic_version VALUES ('newest')")
        database.execute(f"CREATE TABLE {mark} (id)")
        database.executemany(f"INSERT INTO {mark} VALUES (?)", [("x" * 500,)] * 100)
        database.commit()


@pytest.mark.parametrize("damaged", [True, False])
def test_half_a_kept_database_is_made_again(damaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a file, as a power cut leaves it, is not copied: Prefect migrates, and that is kept."""
    there, kept = tmp_path / "prefect.db", tmp_path / "kept.db"
    migrate_to(kept, "earlier")
    if damaged:
        kept.write_bytes(kept.read_bytes()[: kept.stat().st_size // 2])

    async def migrate(server: object) -> None:
        if not there.exists():
            migrate_to(there, "anew")

    class Server:
        class database_config:
            connection_url = f"sqlite+aiosqlite:///{there}"

    monkeypatch.setattr(new_database, "KEPT", kept)
    done = recorded(monkeypatch)
    asyncio.run(new_database.create(Server(), migrate))
    (_, named, folder) = done
    written = kept if damaged else there
    assert (named, folder) == (f"=> {written}", str(tmp_path)), "a power cut leaves no half of it either"
    for path in (there, kept):
        with closing(sqlite3.connect(path)) as database:
            tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert tables == {"alembic_version", "anew" if damaged else "earlier"}


def test_a_copied_database_is_that_of_the_migrations(tmp_path: Path) -> None:
    """The first one is made by Prefect's migrations and kept, with nothing of its own in it but what they insert; a
    copy of it is the same in every statement, and Prefect takes it for a current one."""
    kept = tmp_path / "beside" / "kept.db"
    made = migrated(tmp_path / "first", kept)
    assert kept.is_file() and any("CREATE TABLE" in line and "flow_run" in line for line in made)
    assert {line.split('"')[1] for line in made if line.startswith("INSERT")} <= {"alembic_version", "work_pool"}
    with closing(sqlite3.connect(kept)) as database:
        database.execute("CREATE TABLE mark (id)")
        database.commit()
    copied = migrated(tmp_path / "second", kept)
    assert [line for line in copied if "mark" not in line] == made and len(copied) == len(made) + 1
    assert [path.name for path in (tmp_path / "second").glob(".new-*")] == []


@pytest.mark.parametrize("content", [b"", b"somebody's"])
def test_a_database_that_is_there_stays(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is there is Prefect's to migrate, and nothing is copied over it or kept of it."""
    there, kept, seen = tmp_path / "prefect.db", tmp_path / "kept.db", list[bytes]()
    there.write_bytes(content)

    async def migrate(server: object) -> None:
        seen.append(there.read_bytes())

    class Server:
        class database_config:
            connection_url = f"sqlite+aiosqlite:///{there}"

    kept.write_bytes(b"another")
    monkeypatch.setattr(new_database, "KEPT", kept)
    asyncio.run(new_database.create(Server(), migrate))
    assert seen == [content] and kept.read_bytes() == b"another"


@pytest.mark.parametrize(
    "url", ["postgresql+asyncpg://me@host/prefect", "sqlite+aiosqlite:///:memory:", "sqlite+aiosqlite:///file::memory:"]
)
def test_only_files_of_sqlite_are_copied(url: str) -> None:
    """A database of a server, and one in memory, has no file that could be copied."""
    assert new_database.database_file(url) is None
