"""Who gets an answer from the service: whoever knows its password, and strangers only what is the same everywhere."""

import asyncio
import base64
import functools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIWebSocketRoute
from prefect.server.api.server import API_ROUTERS, create_app
from prefect.settings import PREFECT_SERVER_API_AUTH_STRING, PREFECT_UI_STATIC_DIRECTORY, temporary_settings
from starlette.routing import BaseRoute, Mount, Route
from starlette.testclient import TestClient, WebSocketTestSession
from starlette.websockets import WebSocketDisconnect
from typer.testing import CliRunner

from fleetune.contracts.record import record
from fleetune.store import Store
from flows.cli.app import app as command_line
from flows.service import control, login
from flows.service.asgi import Application
from flows.service.bodies import MOST_BYTES
from flows.service.http_server import application
from flows.service.login import HEALTH, NEEDED, LoggedInOnly
from flows.service_files import PAGES, ServiceFiles, ServiceRecord

HERE = "http://127.0.0.1:4200"
ID = "0f31c1a6-6a3c-4c3b-9d0e-3b6d0c0a5a11"
AUTH_STRING = "fleetune:right"
Head = list[tuple[bytes, bytes]]


def head_with(authorization: bytes) -> Head:
    """The head of a request."""
    return [(b"authorization", authorization)]


STRANGERS: dict[str, Head] = {
    "nothing": [],
    "wrong": head_with(b"Basic " + base64.b64encode(b"fleetune:wrong")),
    "another scheme": head_with(f"Bearer {AUTH_STRING}".encode()),
    "no text": head_with(b"Basic \xff"),
}
KNOWN = head_with(b"Basic " + base64.b64encode(AUTH_STRING.encode()))
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "MADEUP")
NO_WORDS = (
    '"token"',
    "null",
    "[]",
    "{",
    '{"type": "auth", "token": 3}',
    '{"type": "auth", "token": "\\ud800"}',
    "[" * 99_999,
)


@record
class Answer:
    """What the service answers to a request."""

    status: int
    content: bytes
    read_bytes: int
    """How much of the request's body was read."""


async def ask(door: Application, method: str, path: str, head: Head, mebibytes: int = 0) -> Answer:
    """Send a request with a body of this size."""
    left, read, said = [1 << 20] * mebibytes or [0], list[int](), list[Any]()

    async def receive() -> Any:
        if not left:
            await asyncio.Event().wait()  # for the client to go
        read.append(left.pop())
        return {"type": "http.request", "body": bytes(read[-1]), "more_body": bool(left)}

    async def send(message: Any) -> None:
        said.append(message)

    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:4200"), *head], "scheme": "http", "http_version": "1.1",
        "server": ("127.0.0.1", 4200), "client": ("127.0.0.1", 5000), "root_path": "",
    }  # fmt: skip
    await door(scope, receive, send)
    content = b"".join(message.get("body", b"") for message in said)
    return Answer(status=said[0]["status"], content=content, read_bytes=sum(read))


@pytest.fixture(scope="module")
def prefect_app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    """Prefect's application with its UI, as the service makes it."""
    settings = {
        PREFECT_SERVER_API_AUTH_STRING: AUTH_STRING,
        PREFECT_UI_STATIC_DIRECTORY: str(tmp_path_factory.mktemp("ui")),
    }
    with temporary_settings(settings):
        return create_app(ignore_cache=True)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store with the folder of a service."""
    made = Store(tmp_path / "runs")
    ServiceFiles(made.local).folder.mkdir(parents=True)
    return made


@pytest.fixture
def door(prefect_app: FastAPI, store: Store) -> Iterator[Application]:
    """What answers on the port of the service."""
    routes = [*prefect_app.router.routes]
    yield application(prefect_app, store, AUTH_STRING)
    prefect_app.router.routes[:] = routes


def filled(path: str) -> str:
    """The path of a route with something in the place of each parameter."""
    return re.sub(r"{\w+:uuid}|{id}", ID, path).replace("{path:path}", "x")


def served(routes: list[BaseRoute], before: str = "") -> Iterator[str]:
    """Paths of all routes and of what is mounted below them, the routers of Prefect's API included."""
    for route in routes:
        if isinstance(route, Mount):
            yield filled(f"{before}{route.path}/")
            yield from served(list(route.routes), before + route.path)
        elif isinstance(route, Route):
            yield filled(before + route.path)
    if not before:
        yield from (filled(f"/api{getattr(route, 'path', '')}") for router in API_ROUTERS for route in router.routes)


def sockets() -> list[str]:
    """Paths of the websockets of Prefect's API."""
    routes = (route for router in API_ROUTERS for route in router.routes)
    return [filled(f"/api{route.path}") for route in routes if isinstance(route, APIWebSocketRoute)]


def reason(socket: WebSocketTestSession) -> str:
    """Why the server ends a websocket."""
    with pytest.raises(WebSocketDisconnect) as ended:
        socket.receive_text()
    return str(ended.value.reason)


@pytest.mark.parametrize("stranger", STRANGERS)
def test_no_route_answers_a_stranger(door: Application, prefect_app: FastAPI, store: Store, stranger: str) -> None:
    """Every route, by every method, without or with a wrong password, says only that the password is needed: but the
    server's health, the files of the UI, which come with Prefect, and the page that leads to the store's. Before, the
    server listed all its calls to everybody."""
    paths = {*served(prefect_app.router.routes), "/", "/v2/", "/nothing", "/api/nothing", "/metrics", PAGES}
    assert len(paths) > 150 and {"/docs", "/openapi.json", "/api/flows/count", "/api/docs", f"{PAGES}/"} <= paths

    async def ask_all(asked: Iterable[str]) -> dict[tuple[str, str], Answer]:
        return {
            (method, path): await ask(door, method, path, STRANGERS[stranger]) for path in asked for method in METHODS
        }

    answers = asyncio.run(ask_all(paths - set(HEALTH)))
    answered = {asked: answer for asked, answer in answers.items() if answer.status != 401}
    assert {method for method, _ in answered} == {"GET", "HEAD"}
    assert {path for _, path in answered} == {
        "/", "/v2/", "/nothing", "/metrics", "/ui-settings", PAGES, f"{PAGES}/", f"{PAGES}/{{key}}/",
    }  # fmt: skip
    key = ServiceFiles(store.local).key()
    assert not [answer for answer in answers.values() if key.encode() in answer.content or b"right" in answer.content]
    assert answered["GET", f"{PAGES}/{{key}}/"].status == 404, "its key is not the store's"
    assert asyncio.run(ask(door, "GET", f"{PAGES}/{key}/", STRANGERS[stranger])).status == 200


def test_no_websocket_serves_a_stranger(door: Application) -> None:
    """Each websocket ends without and with a wrong password, in whatever form it comes, before Prefect hears of it."""
    client = TestClient(door)
    for path in sockets():
        with pytest.raises(WebSocketDisconnect), client.websocket_connect(f"ws://127.0.0.1:4200{path}"):
            pass
        for word in (*NO_WORDS, json.dumps({"type": "auth", "token": "fleetune:wrong"})):
            with client.websocket_connect(f"ws://127.0.0.1:4200{path}", subprotocols=["prefect"]) as socket:
                socket.send_text(word)
                assert reason(socket) == NEEDED
    assert len(sockets()) == 5


def test_a_websocket_with_the_password_is_served() -> None:
    """Behind the login, an application gets the messages that its client has sent, the first one included."""

    async def server(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept", "subprotocol": "prefect"})
        for _ in range(2):
            await send({"type": "websocket.send", "text": (await receive())["text"]})

    words = [json.dumps({"type": "auth", "token": AUTH_STRING}), "hello"]
    client = TestClient(LoggedInOnly(server, [], AUTH_STRING), base_url=HERE)
    with client.websocket_connect("/api/events/in", subprotocols=["prefect"]) as socket:
        for word in words:
            socket.send_text(word)
        assert [socket.receive_text(), socket.receive_text()] == words


def test_a_silent_websocket_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: 110 websockets that said nothing took every place that Prefect has for those it answers, and nobody was
    answered for 36 s. They come to none, and are not waited for."""
    monkeypatch.setattr(login, "LOGIN_S", 0.0)
    client = TestClient(LoggedInOnly(_never, [], AUTH_STRING), base_url=HERE)
    with client.websocket_connect("/api/events/in", subprotocols=["prefect"]) as socket:
        assert reason(socket) == NEEDED


def test_few_websockets_wait_at_the_door() -> None:
    """Bug: each of any number of strangers' websockets could fill the memory of one message, 311 MB in two seconds."""

    async def strangers() -> list[str]:
        said, over = list[str](), asyncio.Event()

        async def receive_of(number: int) -> Any:
            if said.count("websocket.accept") <= number:
                return {"type": "websocket.connect"}
            await over.wait()
            return {"type": "websocket.disconnect"}

        async def send(message: Any) -> None:
            said.append(message["type"])

        served = LoggedInOnly(_never, [], AUTH_STRING)
        scope = {"type": "websocket", "path": "/api/events/in", "subprotocols": ["prefect"]}
        count = 2 * login.MOST_AT_THE_DOOR
        calls = [served(dict(scope), functools.partial(receive_of, number), send) for number in range(count)]
        tasks = [asyncio.create_task(call) for call in calls]
        while len(said) < count:
            await asyncio.sleep(0)
        over.set()
        await asyncio.gather(*tasks)
        return said

    said = asyncio.run(strangers())
    assert said.count("websocket.accept") == login.MOST_AT_THE_DOOR == said.count("websocket.close")


async def _never(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("a stranger has come through")


@pytest.mark.parametrize("path", ["/api/flow_runs/filter", "/api/flows/filter"])
def test_a_body_is_bounded(door: Application, path: str) -> None:
    """Bug: lists of runs were read before the password was asked for: 700 MB of anybody's raised the server to
    1.6 GiB, and to 4.4 GiB with the password. Nothing is read of a stranger's body, and of another no more than the
    bound."""
    stranger = asyncio.run(ask(door, "POST", path, [], 700))
    assert (stranger.status, stranger.read_bytes) == (401, 0)
    known = asyncio.run(ask(door, "POST", path, KNOWN, 700))
    assert known.status == 413 and known.read_bytes == MOST_BYTES + (1 << 20)


def test_without_a_password_everyone_is_let_in(prefect_app: FastAPI, store: Store) -> None:
    """Who has said so is asked for none, also for the store's pages."""
    routes = [*prefect_app.router.routes]
    service = TestClient(application(prefect_app, store, ""), base_url=HERE)
    assert service.get("/docs").status_code == 200
    assert "No runs yet" in service.get(f"{PAGES}/").text
    prefect_app.router.routes[:] = routes


@pytest.mark.parametrize("authenticated", [True, False])
def test_up_tells_how_to_log_in(store: Store, monkeypatch: pytest.MonkeyPatch, authenticated: bool) -> None:
    """It tells the login, or what it means to have none. A log that others may read gets the password's file, and no
    address has a secret in it, since a list of processes shows what a terminal opens."""
    service = ServiceRecord(
        address=HERE, root=str(store.root), keeper=1, started="", authenticated=authenticated, version="1"
    )
    # replaced: the start of a service takes half a minute
    monkeypatch.setattr(control, "up", lambda *_: service)
    files = ServiceFiles(store.local)
    for terminal in (False, True):
        monkeypatch.setattr("rich.console.Console.is_terminal", terminal)
        told = CliRunner().invoke(command_line, ["up", "--root", str(store.root)], env={"COLUMNS": "200"}).output
        assert f"{HERE}{PAGES}/\n" in told and files.key() not in told
        assert (files.login() in told) == (authenticated and terminal)
        assert (str(files.secret_file) in told) == (authenticated and not terminal)
        assert ("every user and program of this machine" in told) == (not authenticated)
    document = json.loads(CliRunner().invoke(command_line, ["up", "--json", "--root", str(store.root)]).output)
    assert document["password_file"] == (str(files.secret_file) if authenticated else None)
