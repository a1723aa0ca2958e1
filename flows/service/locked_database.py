"""A write of the UI that found SQLite's file locked is tried again by the service: the UI itself does not.

Of two forms that are submitted at once, one can be answered by 503: its transaction read before the other wrote, and
SQLite then refuses its write at once (SQLITE_BUSY_SNAPSHOT). Prefect's clients try again, its UI shows an error.

Why nothing can be written twice (Prefect 3.8.8, `prefect/server`): each request of `WRITES` does all of its work in one
`session_context(begin_transaction=True)` (`api/deployments.py`, `api/flow_runs.py`), and an exception that leaves it
rolls all of it back; what follows the transaction does not use the database. A server on Postgres is not covered: a
connection that is lost during a commit leaves open whether it was written.
"""

import asyncio
import contextlib
import random
import re
import sqlite3
import time
from collections.abc import Sequence

from prefect.server.api.server import is_client_retryable_exception
from sqlalchemy.exc import OperationalError

from flows.service.state_filter import Application, Message, Receive, Send, read_body, replay

_ID = "[0-9a-fA-F-]{36}"
WRITES = re.compile(
    rf"POST /api/deployments/{_ID}/(create_flow_run|schedules)"
    rf"|(PATCH|DELETE) /api/deployments/{_ID}/schedules/{_ID}"
    rf"|POST /api/flow_runs/{_ID}/(set_state|resume)"
    rf"|DELETE /api/flow_runs/{_ID}"
)
"""What people write in the UI's pages of deployments and runs: method and path."""
PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 1.6, 1.6)
"""Pause before each further try; up to half as much is added by chance, so that two requests part. Further tries take
turns, so that many forms do not lock each other out."""
LIMIT_S = 10.0
"""A request is not tried again later than this after it came: SQLite itself waits up to 60 s for a lock."""


class RetriesLockedWrites:
    """An ASGI application before Prefect's."""

    def __init__(self, server: Application, pauses_s: Sequence[float] = PAUSES_S) -> None:
        self._server, self._pauses_s, self._turn = server, pauses_s, asyncio.Lock()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or not WRITES.fullmatch(f"{scope['method']} {scope['path'].rstrip('/')}"):
            return await self._server(scope, receive, send)
        body, began_s = await read_body(receive), time.monotonic()
        turn: contextlib.AbstractAsyncContextManager[None] = contextlib.nullcontext()
        for pause_s in (*self._pauses_s, None):
            answer: list[Message] = []
            try:
                async with turn:
                    await self._server(dict(scope), replay(body, receive), _into(answer))
            except Exception as error:  # Prefect answers, and then raises it
                if pause_s is None or time.monotonic() - began_s > LIMIT_S or not is_locked(error):
                    await _send_all(answer, send)
                    raise
                await asyncio.sleep(pause_s * random.uniform(1.0, 1.5))
                turn = self._turn
            else:
                return await _send_all(answer, send)
        return None


def is_locked(error: Exception) -> bool:
    """True for an error of SQLite by which Prefect says 503: another connection has its file locked."""
    of_sqlite = isinstance(error, OperationalError) and isinstance(error.orig, sqlite3.OperationalError)
    return of_sqlite and is_client_retryable_exception(error)


def _into(answer: list[Message]) -> Send:
    async def keep(message: Message) -> None:
        answer.append(message)

    return keep


async def _send_all(answer: list[Message], send: Send) -> None:
    for message in answer:
        await send(message)
