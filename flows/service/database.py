"""The database of Prefect's server, which people may choose: it is tried before the server starts.

Else the server ends with a traceback of hundreds of lines. No message tells a password.
"""

import asyncio
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine

from fleetune.errors import FleetuneError, Refused, TryAgain, first_line

POSTGRES, SQLITE = "postgresql+asyncpg", "sqlite+aiosqlite"
EXAMPLE = f"{POSTGRES}://ann@127.0.0.1/prefect"
CONNECT_S = 10.0
TRIGRAMS = "pg_trgm"
"""An extension of Postgres that Prefect creates; Debian has it in the package `postgresql`, others in `-contrib`."""
RIGHTS = text(
    f"SELECT EXISTS (SELECT 1 FROM pg_extension WHERE extname = '{TRIGRAMS}'),"
    f" EXISTS (SELECT 1 FROM pg_available_extensions WHERE name = '{TRIGRAMS}'),"
    " has_database_privilege(current_database(), 'CREATE'),"
    " coalesce(has_schema_privilege(current_schema(), 'CREATE'), false), current_user"
)


def check_database(url: str) -> None:
    """Connect to a database as Prefect's server would; Refused or TryAgain where it cannot work."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise Refused(f"database: what is given is no URL; give a URL such as {EXAMPLE}") from None
    if parsed.drivername not in (POSTGRES, SQLITE):
        raise Refused(f"database: {parsed.drivername}: is not {POSTGRES} or {SQLITE}; give a URL such as {EXAMPLE}")
    if parsed.drivername == SQLITE:
        if parsed.database and not (folder := Path(parsed.database).absolute().parent).is_dir():
            raise Refused(f"database: {folder}: there is no such folder; make it, or give another file")
        return
    try:
        asyncio.run(_check_postgres(parsed))
    except FleetuneError:
        raise
    except (OSError, SQLAlchemyError, TypeError, ValueError) as error:
        raise _told(parsed, error) from None
    except Exception as error:
        if getattr(error, "sqlstate", None) is None:  # asyncpg's errors of the server have one, and no common base
            raise
        raise _told(parsed, error) from None


async def _check_postgres(url: URL) -> None:
    engine = create_async_engine(url, connect_args={"timeout": CONNECT_S})
    try:
        async with engine.connect() as connection:
            has, can_have, may_create, may_fill, user = (await connection.execute(RIGHTS)).one()
    finally:
        await engine.dispose()
    place = _place(url)
    if not has and not can_have:
        raise Refused(f"{place}: this server has no {TRIGRAMS}, which Prefect needs; install postgresql-contrib there")
    if not may_fill or not (has or may_create):
        raise Refused(
            f'{place}: user {user} may not create tables there; as its administrator: ALTER DATABASE "{url.database}"'
            f' OWNER TO "{user}"'
        )


def _place(url: URL) -> str:
    return f"database {url.database or url.username} at {url.host or 'localhost'}:{url.port or 5432}"


def _told(url: URL, error: Exception) -> FleetuneError:
    """The error of a connection in a sentence, by the code that Postgres gives it."""
    place, state = _place(url), str(getattr(error, "sqlstate", None) or "")
    if state == "3D000":
        return Refused(
            f'{place}: there is none; as its administrator: CREATE DATABASE "{url.database or url.username}"'
        )
    if state.startswith("28"):
        return Refused(
            f"{place}: it does not let user {url.username} in ({first_line(error)}); a password stands in"
            " ~/.pgpass or in PREFECT_SERVER_DATABASE_CONNECTION_URL"
        )
    if state == "42501":
        return Refused(f"{place}: {first_line(error)}; ask its administrator")
    if isinstance(error, (TypeError, ValueError)) and not isinstance(error, OSError):
        return Refused(f"{place}: {first_line(error)}; correct what follows the ? of the URL")
    if isinstance(error, OSError) or not state:
        why = getattr(error, "strerror", None) or first_line(error) or "no answer"
        return TryAgain(f"{place}: no connection ({why}); start it, or correct the address")
    return TryAgain(f"{place}: {first_line(error)}; try again")
