"""Additions of the service to Prefect's UI: a form in columns, a login that says what it wants, states with our own
names, and writes that wait.

The form. Prefect draws one field below the other, each as wide as the window, and no schema can change that. The style
sheet is put into the copy of the UI that the service serves, so that the form fits one screen. Where a release of
Prefect builds its form otherwise, the form is long again, and works. So does the login, whose field has no label.

Names of states (Promoted, NotBetter, Refused, ...). The UI's default filter, "All except scheduled", is a list of
Prefect's own names for states, so that the pages of deployments would leave out every night that ended as Promoted. The
server gets that list as what it says: every state but Scheduled. A filter for one or some states stays as it is.

Writes. Prefect begins a transaction that first reads and then writes as one that reads. Where another connection has
written in between, SQLite refuses the write at once (SQLITE_BUSY_SNAPSHOT), and the form shows "Service Unavailable";
waiting does not help, and of ten forms that try again, some are refused each time. So a transaction of `WRITES` takes
the lock of the database first (BEGIN IMMEDIATE), and they take turns: the next one begins as soon as one has ended,
while SQLite looks for a free lock up to ten times a second, in no order. So do the worker's signs of life: one that was
refused wrote a traceback into the log of the server, which then closed the worker's connection. None of them (Prefect
3.8.8, `prefect/server/api`) begins a transaction within another, which would wait for itself. Postgres needs none of
this.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from prefect.server.database.configurations import AioSqliteConfiguration
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

from fleetune.filesystem import write_durably
from flows.service.asgi import Application, Message, Receive, Send, replay
from flows.service.bodies import read_body

PAGE = Path("v2") / "index.html"
HEAD_ENDS = "</head>"
RULES = (
    "form div:has(> .group > fieldset) {"
    " display: grid; grid-template-columns: repeat(auto-fill, minmax(min(22rem, 100%), 1fr)); align-items: start; }"
    # Prefect's login is known by its placeholder alone; its field has no label, and its words tell of another user.
    " form:has(input[placeholder='admin:pass'])::after {"
    " content: 'Paste all that fleetune up tells as Login: fleetune:\\2026'; font-size: 0.875rem; }"
)
STYLE = f'<style id="fleetune">{RULES}</style>'
_PUT_BEFORE = re.compile(r'<style id="fleetune">.*?</style>', re.DOTALL)


def put_style(ui: Path) -> None:
    """Put the style sheet into the copy of the UI in the folder `ui`, once; a copy that cannot be written stays."""
    page = ui / PAGE
    with suppress(OSError, UnicodeDecodeError):
        found = page.read_text(encoding="utf-8")
        wanted = _PUT_BEFORE.sub("", found).replace(HEAD_ENDS, STYLE + HEAD_ENDS, 1)
        if wanted != found:
            write_durably(wanted.encode(), page)


ENDS = frozenset({"Completed", "Cancelled", "Crashed", "Failed"})
"""A list of names that holds all of these is one of all states."""
SCHEDULED = "Scheduled"
LISTS = tuple(f"/api/flow_runs/{word}" for word in ("filter", "paginate", "count", "history"))


class NamesOfAllStates:
    """An ASGI application before Prefect's: it changes what lists of runs are asked for."""

    def __init__(self, server: Application) -> None:
        self._server = server

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"].rstrip("/") not in LISTS:
            return await self._server(scope, receive, send)
        body = await read_body(receive)
        if body is None:
            return None
        body = widened(body)
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        scope = {**scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}
        whole = {"type": "http.request", "body": body, "more_body": False}
        await self._server(scope, replay([whole], receive), send)


def widened(body: bytes) -> bytes:
    """The body of a request for flow runs, in which a list of the names of all states but Scheduled is a filter for
    every other name; any other body as it is."""
    try:
        asked = json.loads(body)
        named = asked["flow_runs"]["state"]["name"]
        names = set(named["any_"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return body
    if not names >= ENDS or SCHEDULED in names:
        return body
    del named["any_"]
    named["not_any_"] = [*(named.get("not_any_") or ()), SCHEDULED]
    return json.dumps(asked).encode()


_ID = "[0-9a-fA-F-]{36}"
WRITES = re.compile(
    rf"POST /api/deployments/{_ID}/(create_flow_run|schedules)"
    rf"|(PATCH|DELETE) /api/deployments/{_ID}/schedules/{_ID}"
    rf"|POST /api/flow_runs/{_ID}/(set_state|resume)"
    rf"|DELETE /api/flow_runs/{_ID}"
    r"|POST /api/work_pools/[^/]+/workers/heartbeat"
    r"|websocket /api/work_pools/[^/]+/workers/connect"
)
"""What people write in the UI's pages of deployments and runs, and the worker's signs of life: method and path."""
_LOCKS_FIRST: ContextVar[bool] = ContextVar("_LOCKS_FIRST", default=False)
_BEGIN = AioSqliteConfiguration.begin_transaction


class LocksFirst:
    """An ASGI application before Prefect's: transactions of WRITES lock the database as they begin."""

    def __init__(self, server: Application) -> None:
        self._server = server
        _begin_with_a_lock()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one websocket to its end."""
        method = scope.get("method", scope["type"])
        writes = "path" in scope and WRITES.fullmatch(f"{method} {scope['path'].rstrip('/')}")
        token = _LOCKS_FIRST.set(bool(writes))
        try:
            await self._server(scope, receive, send)
        finally:
            _LOCKS_FIRST.reset(token)


def _begin_with_a_lock() -> None:
    """Have Prefect's transactions on SQLite heed _LOCKS_FIRST."""
    turn = asyncio.Lock()

    @asynccontextmanager
    async def begin_transaction(
        self: AioSqliteConfiguration, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncIterator[AsyncSessionTransaction]:
        first = _LOCKS_FIRST.get()
        async with turn if first else nullcontext(), _BEGIN(self, session, first or with_for_update) as begun:
            yield begun

    AioSqliteConfiguration.begin_transaction = begin_transaction  # type: ignore[method-assign]
