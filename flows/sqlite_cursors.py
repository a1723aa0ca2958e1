"""Cursors of SQLite for Prefect's server, which let go of their statement in the thread of their connection.

The server has one event loop and a thread for each connection. A statement that ended in an error stays with its
cursor, and the cursor with the error's traceback, until the garbage collector frees both: in the event loop. That
resets the statement, for which SQLite wants the connection's mutex. Where the connection has begun to wait for the lock
of the database meanwhile, its thread holds the mutex for as long as it waits, 60 s; and the transaction that holds the
lock cannot end, because it needs the event loop. So the whole server answered nobody for 60 s.

Here a cursor closes itself before its error leaves the thread, and nothing is left to reset.
"""

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine


def _closing(name: str) -> Callable[..., Any]:
    """The method `name` of cursors, which closes the cursor before it raises."""
    method = getattr(sqlite3.Cursor, name)

    def call(self: sqlite3.Cursor, *arguments: Any, **named: Any) -> Any:
        try:
            return method(self, *arguments, **named)
        except BaseException:
            with suppress(sqlite3.Error):  # its connection is closed, and so is the statement
                self.close()
            raise

    return call


class ClosingCursor(sqlite3.Cursor):
    """A cursor that is closed once one of its methods has raised."""

    execute = _closing("execute")
    executemany = _closing("executemany")
    executescript = _closing("executescript")
    fetchone = _closing("fetchone")
    fetchmany = _closing("fetchmany")
    fetchall = _closing("fetchall")


class Connection(sqlite3.Connection):
    """A connection whose cursors close themselves after an error."""

    def cursor(self, factory: Any = ClosingCursor) -> Any:
        """A new cursor."""
        return super().cursor(factory)


def close_failed_cursors() -> None:
    """Have every engine of this process connect to SQLite so; call it before the first connection."""
    if not event.contains(Engine, "do_connect", _choose_factory):
        event.listen(Engine, "do_connect", _choose_factory)


def _choose_factory(dialect: Any, _: Any, __: Any, named: dict[str, Any]) -> None:
    if dialect.name == "sqlite":
        named["factory"] = Connection
