"""Writes of the UI that find SQLite's file locked: the service tries again, and only where nothing was written."""

import asyncio
import datetime
import http
import sqlite3
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError, OperationalError

from flows.service.locked_database import PAUSES_S, WRITES, RetriesLockedWrites
from tests.flows.service.client import LIMIT_S, ServiceClient

ID = "0f31c1a6-6a3c-4c3b-9d0e-3b6d0c0a5a11"
SUBMIT = f"/api/deployments/{ID}/create_flow_run"
BODY = b'{"parameters": {"base": "demo"}}'
AT_ONCE, TIMES = 8, 3


def locked() -> OperationalError:
    """What a deferred transaction raises whose snapshot is older than another's write."""
    return OperationalError("INSERT", {}, sqlite3.OperationalError("database is locked"))


class Server:
    """Answers as Prefect does: 503 and then the error while there is one, else 201."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.bodies = list(errors), list[bytes]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        self.bodies.append((await receive())["body"])
        error = self.errors.pop(0) if self.errors else None
        status = http.HTTPStatus.SERVICE_UNAVAILABLE if error else http.HTTPStatus.CREATED
        await send({"type": "http.response.start", "status": int(status), "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})
        if error:
            raise error


def answer(server: Server, method: str = "POST", path: str = SUBMIT) -> list[int]:
    """Statuses of the answers that the client gets, one for one request; an error ends it as it ends uvicorn's."""
    parts = [BODY[:10], BODY[10:]]
    told: list[Any] = []

    async def receive() -> Any:
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: Any) -> None:
        told.append(message)

    application = RetriesLockedWrites(server, [0.0] * len(PAUSES_S))
    try:
        asyncio.run(application({"type": "http", "method": method, "path": path}, receive, send))
    except DBAPIError:
        assert told, "it was answered before"
    return [message["status"] for message in told if message["type"] == "http.response.start"]


def test_a_locked_write_is_tried_again() -> None:
    """The client sees one answer, the last; every try has the whole body."""
    server = Server(locked(), locked())
    assert answer(server) == [201] and server.bodies == [BODY] * 3


def test_tries_are_bounded() -> None:
    """A file that stays locked is told to the client."""
    server = Server(*[locked() for _ in range(100)])
    assert answer(server) == [503] and len(server.bodies) == len(PAUSES_S) + 1


@pytest.mark.parametrize(
    "error",
    [
        DBAPIError("COMMIT", {}, ConnectionError("lost")),
        OperationalError("", {}, sqlite3.OperationalError("disk full")),
    ],
)
def test_what_may_have_been_written_is_not_tried_again(error: Exception) -> None:
    """A connection to Postgres that was lost during a commit, and any other error of SQLite."""
    server = Server(error)
    assert answer(server) == [503] and len(server.bodies) == 1


def test_only_known_writes_are_tried_again() -> None:
    """Requests with several transactions are not."""
    for method, path in (("POST", "/api/deployments/"), ("POST", f"/api/deployments/{ID}/pause_deployment")):
        server = Server(locked())
        assert answer(server, method, path) == [503] and len(server.bodies) == 1
    assert WRITES.fullmatch(f"POST /api/flow_runs/{ID}/set_state")


@pytest.mark.slow
def test_forms_that_are_submitted_at_once_are_all_taken(service: ServiceClient) -> None:
    """Bug: of two forms that were submitted at the same moment one showed "Service Unavailable". Each of many becomes
    one run and not two.
    """
    deployment = service.call("GET", "/deployments/name/finetune/finetune")["id"]
    later = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)).isoformat()
    state = {"type": "SCHEDULED", "state_details": {"scheduled_time": later}}
    together = Barrier(AT_ONCE)

    def submit(number: int) -> int:
        form = {"name": f"at-once-{number}", "parameters": {"base": "demo"}, "state": state}
        request = service.request("POST", f"/deployments/{deployment}/create_flow_run", form)
        together.wait(LIMIT_S)
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    with ThreadPoolExecutor(AT_ONCE) as pool:
        statuses = list(pool.map(submit, range(AT_ONCE * TIMES)))
    asked = {"flow_runs": {"name": {"like_": "at-once-"}}, "limit": 200}
    runs = service.call("POST", "/flow_runs/filter", asked)
    for run in runs:
        service.call("DELETE", f"/flow_runs/{run['id']}")
    assert Counter(statuses) == {http.HTTPStatus.CREATED: AT_ONCE * TIMES}
    assert Counter(run["name"] for run in runs) == {f"at-once-{number}": 1 for number in range(AT_ONCE * TIMES)}
