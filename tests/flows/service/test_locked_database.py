"""Forms that are submitted at once: each transaction locks SQLite's file as it begins, and they take turns."""

import asyncio
import datetime
import http
import sqlite3
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from prefect.server.database.configurations import AioSqliteConfiguration
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from flows.service.keeper import POOL
from flows.service.ui_patches import WRITES, LocksFirst
from tests.support.flows.service.client import LIMIT_S, ServiceClient

ID = "0f31c1a6-6a3c-4c3b-9d0e-3b6d0c0a5a11"
SUBMIT = f"/api/deployments/{ID}/create_flow_run"
WRITE = "INSERT INTO runs VALUES (1)"
AT_ONCE, TIMES = 10, 3
ANSWER_S = 30.0
"""Longest answer on a machine that does much else."""


class Server:
    """Answers as Prefect does, in a transaction that reads and then writes; another connection tries to write in
    between."""

    def __init__(self, database: Path) -> None:
        self.database = database
        self.configuration = AioSqliteConfiguration(f"sqlite+aiosqlite:///{database}")
        self.answers: list[tuple[int, int]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        session = await self.configuration.session(await self.configuration.engine())
        try:
            async with session, self.configuration.begin_transaction(session):
                await session.execute(text("SELECT count(*) FROM runs"))
                self._write_in_between()
                await session.execute(text(WRITE))
        except OperationalError:
            self.answers.append((scope["number"], http.HTTPStatus.SERVICE_UNAVAILABLE))
        else:
            self.answers.append((scope["number"], http.HTTPStatus.CREATED))

    def _write_in_between(self) -> None:
        with closing(sqlite3.connect(self.database, timeout=0)) as other:
            try:
                other.execute(WRITE)
                other.commit()
            except sqlite3.OperationalError:
                return


POST = {"type": "http", "method": "POST"}


async def answers(database: Path, path: str, requests: int, kind: dict[str, str] = POST) -> list[tuple[int, int]]:
    """Number and status of each answer to requests that come at once."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE runs (number)")
    server = Server(database)
    application, scope = LocksFirst(server), {**kind, "path": path}
    receive: Any = None
    await asyncio.gather(*(application({**scope, "number": number}, receive, receive) for number in range(requests)))
    await (await server.configuration.engine()).dispose()
    return server.answers


def test_forms_at_once_take_turns(tmp_path: Path) -> None:
    """Ten are all taken, in the order in which they came, and nobody writes between what one reads and writes."""
    found = asyncio.run(answers(tmp_path / "prefect.db", SUBMIT, AT_ONCE))
    assert found == [(number, http.HTTPStatus.CREATED) for number in range(AT_ONCE)]


def test_other_requests_do_not_lock(tmp_path: Path) -> None:
    """What is not written by people begins as Prefect has it, which the test before would not pass with."""
    found = asyncio.run(answers(tmp_path / "prefect.db", "/api/deployments/", 1))
    assert found == [(0, http.HTTPStatus.SERVICE_UNAVAILABLE)]
    assert WRITES.fullmatch(f"POST /api/flow_runs/{ID}/set_state")


@pytest.mark.parametrize(
    ("kind", "word"), [(POST, "heartbeat"), ({"type": "websocket"}, "connect")], ids=["request", "websocket"]
)
def test_signs_of_life_take_turns(tmp_path: Path, kind: dict[str, str], word: str) -> None:
    """Bug: a worker's sign of life met "database is locked", and the server closed its connection. Whichever way it
    takes, nobody writes between what it reads and writes."""
    path = f"/api/work_pools/{POOL}/workers/{word}"
    found = asyncio.run(answers(tmp_path / "prefect.db", path, 2, kind))
    assert found == [(0, http.HTTPStatus.CREATED), (1, http.HTTPStatus.CREATED)]


def test_forms_that_are_submitted_at_once_are_all_taken(service: ServiceClient) -> None:
    """Bug: of forms that were submitted at the same moment some showed "Service Unavailable": one of two, and one of
    six where ten tried again. Each of many becomes one run and not two.
    """
    deployment = service.call("GET", "/deployments/name/finetune/finetune")["id"]
    later = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)).isoformat()
    state = {"type": "SCHEDULED", "state_details": {"scheduled_time": later}}
    together = Barrier(AT_ONCE)

    def submit(number: int) -> tuple[int, float]:
        form = {"name": f"at-once-{number}", "parameters": {"base": "demo"}, "state": state}
        request = service.request("POST", f"/deployments/{deployment}/create_flow_run", form)
        together.wait(LIMIT_S)
        began_s = time.monotonic()
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as reply:
                return int(reply.status), time.monotonic() - began_s
        except urllib.error.HTTPError as error:
            error.close()
            return error.code, time.monotonic() - began_s

    with ThreadPoolExecutor(AT_ONCE) as pool:
        told = list(pool.map(submit, range(AT_ONCE * TIMES)))
    asked = {"flow_runs": {"name": {"like_": "at-once-"}}, "limit": 200}
    runs = service.call("POST", "/flow_runs/filter", asked)
    for run in runs:
        service.call("DELETE", f"/flow_runs/{run['id']}")
    assert Counter(status for status, _ in told) == {http.HTTPStatus.CREATED: AT_ONCE * TIMES}
    assert max(answer_s for _, answer_s in told) < ANSWER_S
    assert Counter(run["name"] for run in runs) == {f"at-once-{number}": 1 for number in range(AT_ONCE * TIMES)}
