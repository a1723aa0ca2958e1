"""Who is let in: whoever knows the password of the service.

Other users of this machine reach its port as well as its owner does, and whoever may start runs runs programs as the
owner. So everything asks for the password, by Prefect's own ways of giving it, but the files of the UI, which are the
same everywhere, and the server's health. The pages of the store have the password in their path, since a browser that
follows a link sends none. Nothing but the head of a request is read before, and neither Prefect nor our other ASGI
applications see one of a stranger.
"""

import asyncio
import hmac
import json
from collections.abc import Sequence

from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Match, Mount

from flows.service.asgi import Application, Message, Receive, Send, replay
from flows.service_files import basic_authorization

UI, STORE = "ui", "store"
"""Names of the mounts that strangers may read: Prefect's, and that of the store's pages, which ask for their key."""
HEALTH = ("/api/health", "/api/ready")
NEEDED = "the password is needed; fleetune up tells it"
SUBPROTOCOL = "prefect"
LOGIN_S, LOGIN_CHARACTERS = 10.0, 4096
"""Longest pause before, and length of, the first message of a websocket, which holds the password."""
MOST_AT_THE_DOOR = 32
"""Websockets that may be about to log in at once: each can fill the memory of one message."""
VIOLATION = 1008


class LoggedInOnly:
    """An ASGI application before all others of the service: it lets through what comes with the password."""

    def __init__(self, server: Application, routes: Sequence[BaseRoute], auth_string: str) -> None:
        """`routes`: of the server. `auth_string`: `USER:PASSWORD`."""
        self._server, self._routes, self._auth_string = server, routes, auth_string.encode()
        self._authorization = basic_authorization(auth_string).encode()
        self._at_the_door = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one websocket to its end."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and self._admits(scope)):
            return await self._server(scope, receive, send)
        if scope["type"] == "websocket":
            return await self._log_in(scope, receive, send)
        said = {"exception_message": "Unauthorized", "detail": NEEDED}  # in Prefect's words, and ours
        end = {"Connection": "close"}  # the body is not read
        await JSONResponse(said, status_code=401, headers=end)(scope, receive, send)

    def _admits(self, scope: Message) -> bool:
        """True for a request with the password, and for what strangers may read."""
        given = dict(scope["headers"]).get(b"authorization", b"")
        if hmac.compare_digest(given, self._authorization):
            return True
        if scope["method"] not in ("GET", "HEAD"):
            return False
        asked = next((route for route in self._routes if route.matches(scope)[0] == Match.FULL), None)
        return scope["path"] in HEALTH or (isinstance(asked, Mount) and asked.name in (UI, STORE))

    async def _log_in(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve a websocket whose first message holds the password, as Prefect's clients send it; end any other one.

        Prefect itself would look only after a websocket has taken one of the hundred places that it has for all.
        """
        if SUBPROTOCOL not in scope.get("subprotocols", ()) or self._at_the_door >= MOST_AT_THE_DOOR:
            return await send({"type": "websocket.close", "code": VIOLATION, "reason": ""})
        self._at_the_door += 1
        try:
            begin = await receive()
            await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
            first = await asyncio.wait_for(receive(), LOGIN_S)
        except TimeoutError:
            first = {"type": "websocket.receive"}
        finally:
            self._at_the_door -= 1
        if first["type"] == "websocket.disconnect":
            return None
        if not self._is_login(first.get("text") or ""):
            return await send({"type": "websocket.close", "code": VIOLATION, "reason": NEEDED})

        async def answer(message: Message) -> None:
            if message["type"] != "websocket.accept":
                await send(message)

        accepted = {**scope, "extensions": {}}  # it is too late for an answer in the place of a websocket
        await self._server(accepted, replay([begin, first], receive), answer)

    def _is_login(self, text: str) -> bool:
        try:
            said = json.loads(text[:LOGIN_CHARACTERS])
            return said["type"] == "auth" and hmac.compare_digest(said["token"].encode(), self._auth_string)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return False
