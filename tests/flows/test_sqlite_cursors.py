"""A statement of Prefect's server that fails, while the connection it came from waits for the database's lock."""

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from flows.sqlite_cursors import close_failed_cursors

WAIT_S = 60
"""Longest wait for the lock, as Prefect's server has it."""


def test_an_error_does_not_stop_the_server(tmp_path: Path) -> None:
    """The event loop frees the error of a statement while its connection waits for a lock, and goes on: the holder of
    the lock can commit, and the other one gets it.

    Bug: every request to Prefect's server was unanswered for 60 s. The garbage collector waited for the connection,
    which waited for a transaction that could not end without the event loop.
    """
    close_failed_cursors()
    asyncio.run(_free_an_error_while_its_connection_waits(tmp_path / "prefect.db"))


async def _free_an_error_while_its_connection_waits(path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", isolation_level="AUTOCOMMIT")
    async with engine.connect() as holder, engine.connect() as other:
        await _run(holder, "CREATE TABLE runs (id UNIQUE)", "INSERT INTO runs VALUES (1)")
        errors = await _fail(other)
        await _run(other, f"PRAGMA busy_timeout = {WAIT_S * 1000}")
        await _run(holder, "BEGIN IMMEDIATE")
        waits = threading.Event()
        driver: Any = (await other.get_raw_connection()).driver_connection
        await driver.set_trace_callback(lambda _: waits.set())  # told as a statement begins, by a thread with the mutex
        waiting = asyncio.create_task(_run(other, "BEGIN IMMEDIATE"))
        await asyncio.to_thread(waits.wait, WAIT_S)
        errors.clear()
        gc.collect()
        await _run(holder, "COMMIT")
        await waiting
        await _run(other, "ROLLBACK")
    await engine.dispose()


async def _run(connection: AsyncConnection, *statements: str) -> None:
    for statement in statements:
        await connection.exec_driver_sql(statement)


async def _fail(connection: AsyncConnection) -> list[Exception]:
    """The error of a statement, with its traceback; the connection can be used again."""
    try:
        await connection.execute(text("INSERT INTO runs VALUES (1)"))
    except IntegrityError as error:
        await connection.rollback()
        return [error]
    raise AssertionError("the row is there already")
