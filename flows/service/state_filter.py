"""Runs whose states have names of our own (Promoted, NotBetter, Refused, ...) in the lists of Prefect's UI.

The UI's default filter, "All except scheduled", is a list of Prefect's own names for states, so that the pages of
deployments would leave out every night that ended as Promoted. The server gets that list as what it says: every state
but Scheduled. A filter for one or some states stays as it is.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

ENDS = frozenset({"Completed", "Cancelled", "Crashed", "Failed"})
"""A list of names that holds all of these is one of all states."""
SCHEDULED = "Scheduled"
LISTS = tuple(f"/api/flow_runs/{word}" for word in ("filter", "paginate", "count", "history"))

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class NamesOfAllStates:
    """An ASGI application before Prefect's: it changes what lists of runs are asked for."""

    def __init__(self, server: Application) -> None:
        self._server = server

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"].rstrip("/") not in LISTS:
            return await self._server(scope, receive, send)
        body = await read_body(receive)
        if body is not None:
            body = widened(body)
            headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
            scope = {**scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}
        await self._server(scope, replay(body, receive), send)


async def read_body(receive: Receive) -> bytes | None:
    """The whole body of a request; None where the client has gone before its end."""
    parts = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
    return None


def replay(body: bytes | None, receive: Receive) -> Receive:
    """What an application reads of a request whose body was read already."""
    last: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    if body is None:
        last = [{"type": "http.disconnect"}]

    async def read() -> Message:
        return last.pop() if last else await receive()

    return read


def widened(body: bytes) -> bytes:
    """The body of a request for flow runs, in which a list of the names of all states but Scheduled is a filter for
    every other name; any other body as it is."""
    try:
        asked = json.loads(body)
        named = asked["flow_runs"]["state"]["name"]
        names = set(named["any_"])
    except (ValueError, LookupError, TypeError):
        return body
    if not names >= ENDS or SCHEDULED in names:
        return body
    del named["any_"]
    named["not_any_"] = [*(named.get("not_any_") or ()), SCHEDULED]
    return json.dumps(asked).encode()
