"""The store over HTTP, read-only: runs, their stages, and every file of their artifacts.

Prefect's UI drops `file://` links, so that artifacts need addresses. A browser that follows a link sends no password,
and a cookie would reach every port of this machine, so that the addresses hold a key, which only the password tells.
Without a key, or with one that was valid before a service without a password, a page makes it of what the UI has kept
of its login, and goes on to what was asked for. Pages carry a policy that lets a stored file, such
as an HTML page that came with a model, neither run scripts nor speak to Prefect's API on the same address.
"""

import hmac
from collections.abc import Callable
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from fleetune.contracts import json_io
from fleetune.errors import FleetuneError
from fleetune.store import Store
from flows import yaml_file
from flows.comparison.archive import every, read
from flows.service.asgi import Message, Receive, Send
from flows.service_files import KEY_CHARACTERS, OPEN, PAGES, ServiceFiles

POLICY = "default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'; sandbox"
HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
SHOWN = {".html": "text/html", ".json": "application/json", ".jsonl": "text/plain", ".txt": "text/plain",
         ".md": "text/plain", ".yaml": "text/plain", ".log": "text/plain", ".svg": "image/svg+xml",
         ".png": "image/png"}  # fmt: skip
"""Suffix -> media type of files that a browser shows; it saves all others."""

ENTER_POLICY = {"Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"}
"""The page without a key runs a script of its own, and shows nothing of the store."""

_PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def locked_store_pages(store: Store, files: ServiceFiles, password: bool) -> Starlette:
    """The pages under `/KEY/`, and the page `/`, from which a browser that has logged in comes to them, as it does with
    another key; without a `password` everyone does."""
    pages, key, opened = store_pages(store), files.key(), files.opened()

    def entrance(status: int) -> Response:
        page = _PAGES.get_template("enter.html").render(base=PAGES, key_characters=KEY_CHARACTERS, opened=opened)
        return HTMLResponse(page, status, headers={**HEADERS, **ENTER_POLICY})

    async def enter(request: Request) -> Response:
        return entrance(200) if password else RedirectResponse(f"{PAGES}/{OPEN}/")

    async def unlocked(scope: Message, receive: Receive, send: Send) -> None:
        given = scope["path_params"]["key"]
        is_right = not password or hmac.compare_digest(given.encode(), key.encode())
        answer = pages if is_right else entrance(404)
        await answer({**scope, "path_params": {}}, receive, send)  # a page has parameters of its own

    return Starlette(routes=[Route("/", enter), Mount("/{key}", app=unlocked)])


def store_pages(store: Store) -> Starlette:
    """The pages alone, for whoever may ask for them."""
    pages = StorePages(store)
    return Starlette(
        routes=[
            Route("/", pages.runs),
            Route("/runs/{run}", pages.run),
            Route("/comparisons/{comparison}/{file}", pages.comparison),
            Route("/artifacts/{kind}/{digest}", pages.artifact),
            Route("/artifacts/{kind}/{digest}/{path:path}", pages.file),
        ]
    )


class StorePages:
    """The pages of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def runs(self, request: Request) -> Response:
        """All runs and comparisons, newest first."""

        def page() -> Response:
            store = self._store
            return _page(request, "runs.html", runs=store.runs.all(), comparisons=every(store), root=store.root)

        return await _answer(page)

    async def comparison(self, request: Request) -> Response:
        """A file of a comparison: its page, or its document."""
        named, file = request.path_params["comparison"], request.path_params["file"]
        media_type = SHOWN.get(Path(file).suffix)
        return await _answer(lambda: Response(read(self._store, named, file), media_type=media_type, headers=HEADERS))

    async def run(self, request: Request) -> Response:
        """One run: its stages with reasons and artifacts, and its config."""

        def page() -> Response:
            found = self._store.runs.load(request.path_params["run"])
            return _page(request, "run.html", run=found, config=yaml_file.text(json_io.dump(found.config)))

        return await _answer(page)

    async def artifact(self, request: Request) -> Response:
        """The files of one artifact."""
        kind, digest = request.path_params["kind"], request.path_params["digest"]
        return await _answer(
            lambda: _page(request, "artifact.html", kind=kind, digest=digest, made=self._store.manifest(kind, digest))
        )

    async def file(self, request: Request) -> Response:
        """One file of an artifact; only files that its manifest names exist."""
        return await _answer(lambda: self._file(**request.path_params))

    def _file(self, kind: str, digest: str, path: str) -> Response:
        if all(file.path != path for file in self._store.manifest(kind, digest).files):
            return _missing(f"artifact {kind} {digest} has no file {path}")
        place = self._store.folder(kind, digest) / path
        media_type = SHOWN.get(place.suffix)
        if media_type is None:
            return FileResponse(place, headers=HEADERS, filename=place.name)
        return FileResponse(place, headers=HEADERS, media_type=media_type)


async def _answer(page: Callable[[], Response]) -> Response:
    """Make a page in a thread; what the store refuses is not found."""
    try:
        return await run_in_threadpool(page)
    except (FleetuneError, OSError) as error:
        return _missing(str(error))


def _missing(why: str) -> Response:
    return Response(why, status_code=404, media_type="text/plain", headers=HEADERS)


def _page(request: Request, name: str, **content: object) -> Response:
    base = request.scope.get("root_path", "")
    return HTMLResponse(_PAGES.get_template(name).render(base=base, **content), headers=HEADERS)
