"""`python -m flows.service.http_server PORT ROOT`: Prefect's server with its UI, and the store's pages beside it.

The keeper has reserved the port, so that no other user's program can answer in its place. The auth string arrives on
the first line of stdin, which no list of processes shows; an empty line means that everyone is let in.
"""

import os
import re
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fleetune.errors import FleetuneError
from flows.prefect_server import CLIENT_SECRET, DATABASE, HOST, LOOPBACK, SECRET
from flows.service.asgi import Application, Message, Receive, Send
from flows.service_files import PAGES, ServiceFiles

if TYPE_CHECKING:
    from fastapi import FastAPI

    from fleetune.store import Store

GRACE_S = 3
MOST_MESSAGE_BYTES = 4 << 20
"""Longest message of a websocket; Prefect takes events of 1.5 MB."""
STATIC = "PREFECT_UI_STATIC_DIRECTORY"
"""Prefect's variable for the folder in which it keeps a copy of its UI."""


def main() -> None:
    """Serve until the process is terminated."""
    port, root = int(sys.argv[1]), sys.argv[2]
    auth_string = sys.stdin.readline().strip()
    os.environ.pop(SECRET, None)  # a password that the user's own server has
    if auth_string:
        os.environ[SECRET] = os.environ[CLIENT_SECRET] = auth_string
    if url := os.environ.get(DATABASE):
        _check(url)
    with socket.create_server((HOST, port), backlog=2048, reuse_port=True) as listener:
        _serve(listener, root, auth_string)


def _check(url: str) -> None:
    from flows.service.database import check_database

    try:
        check_database(url)
    except FleetuneError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(error.exit_code) from None


def _serve(listener: socket.socket, root: str, auth_string: str) -> None:
    import uvicorn
    from prefect.server.api.server import create_app

    import flows.service.automations  # noqa: F401  (the server finds the block by its class)
    from fleetune.store import Store
    from flows.new_database import copy_new_databases
    from flows.service.cron_times import follow_cron
    from flows.service.ui_patches import put_style
    from flows.sqlite_cursors import close_failed_cursors

    close_failed_cursors()
    follow_cron()
    copy_new_databases()
    app = create_app()
    put_style(Path(os.environ[STATIC]))
    config = uvicorn.Config(
        application(app, Store(root), auth_string),
        log_level="warning",
        lifespan="on",
        timeout_graceful_shutdown=GRACE_S,
        ws_max_size=MOST_MESSAGE_BYTES,
    )
    uvicorn.Server(config).run(sockets=[listener])


def application(app: "FastAPI", store: "Store", auth_string: str) -> Application:
    """Prefect's application `app` with the store's pages, behind the password and our other applications."""
    from starlette.routing import Mount

    from flows.service.bodies import BoundedBodies
    from flows.service.login import STORE, LoggedInOnly
    from flows.service.store_pages import locked_store_pages
    from flows.service.ui_patches import LocksFirst, NamesOfAllStates

    files = ServiceFiles(store.local)
    pages = locked_store_pages(store, files, password=bool(auth_string))
    app.router.routes.insert(0, Mount(PAGES, app=pages, name=STORE))  # before the UI's "/"
    inner = BoundedBodies(TellsWorker(LocksFirst(NamesOfAllStates(app)), files.submitted))
    return OwnPagesOnly(LoggedInOnly(inner, app.routes, auth_string) if auth_string else inner)


SUBMISSIONS = re.compile(r"/api/(deployments/[^/]+/create_flow_run|flow_runs/[^/]+/(set_state|resume))/?")


class TellsWorker:
    """An ASGI application before Prefect's: it tells the worker of submitted runs, which else asks seldom."""

    def __init__(self, server: "Application", mark: Path) -> None:
        """`mark`: the file that is touched."""
        self._server, self._mark = server, mark

    async def __call__(self, scope: "Message", receive: "Receive", send: "Send") -> None:
        """Answer one request."""
        await self._server(scope, receive, send)
        if scope["type"] == "http" and scope["method"] == "POST" and SUBMISSIONS.fullmatch(scope["path"]):
            with suppress(OSError):  # a full disk: the worker asks soon
                self._mark.touch()


FOREIGN = "refused: this address serves its own pages and programs of this machine only"


class OwnPagesOnly:
    """An ASGI application before Prefect's, which answers web pages from everywhere: it lets through what is asked of a
    loopback name, by no page or by one of its own.

    Else a page of another site, or of another user's program on this machine, could start runs, and change the command
    that the worker runs, through the browser of whoever looks at it.
    """

    def __init__(self, server: "Application") -> None:
        self._server = server

    async def __call__(self, scope: "Message", receive: "Receive", send: "Send") -> None:
        """Answer one request; a refused websocket is closed."""
        if scope["type"] == "lifespan" or is_own(dict(scope["headers"])):
            return await self._server(scope, receive, send)
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008, "reason": ""})
        from starlette.responses import PlainTextResponse

        return await PlainTextResponse(FOREIGN, status_code=403)(scope, receive, send)


def is_own(headers: dict[bytes, bytes]) -> bool:
    """True for headers that name this machine as the host, and no page or one of that host as their origin.

    The host may be another's name that resolves to this address. Programs name no origin; browsers do, in every request
    that can change something.
    """
    host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
    try:
        is_here = urlsplit(f"//{host}").hostname in LOOPBACK
        return is_here and (not origin or urlsplit(origin).netloc == host)
    except ValueError:
        return False


if __name__ == "__main__":
    main()
