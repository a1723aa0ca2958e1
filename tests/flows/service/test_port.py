"""The port of a service: nobody else has it, not even another service of the same user."""

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetune.errors import Refused
from flows.prefect_server import HOST
from flows.service import control
from flows.service.keeper import reserve
from flows.service_files import ServiceFiles, ServiceRecord
from tests.flows.service.client import ServiceClient

RUNNING = ServiceRecord(
    address="http://127.0.0.1:4950", root="runs", keeper=1, started="", authenticated=False, version="1"
)


def test_two_services_have_no_port_together() -> None:
    """Bug: SO_REUSEPORT let a second store's service have the port of the first, and both said they were ready. The
    port is the first one's and its server's alone, also while the server is away.
    """
    port = ServiceClient.free_port()
    with reserve(port):
        with pytest.raises(Refused, match=rf"port {port}: another program has it; give another with --port"):
            reserve(port)
        with socket.create_server((HOST, port), reuse_port=True) as listener:
            with pytest.raises(Refused, match=str(port)):
                reserve(port)
            with socket.create_connection((HOST, port)), listener.accept()[0]:
                pass
        with pytest.raises(Refused, match=str(port)):
            reserve(port)
    with reserve(port):
        """A connection that has just ended holds nothing."""


def test_settings_of_a_running_service_are_not_ignored(tmp_path: Path) -> None:
    """`up` with another port, password or database than the running service has says so, and how to change it; no
    password of a database is told.
    """
    files = ServiceFiles(tmp_path)
    files.folder.mkdir(parents=True)
    url = "postgresql+asyncpg://ann:hush@db/prefect"
    on_postgres = replace(RUNNING, database=files.mark(url))

    def refusal(running: ServiceRecord = RUNNING, **asked: Any) -> str:
        with pytest.raises(
            Refused, match=r".* runs already.*; to change it: fleetune down, then fleetune up"
        ) as refused:
            control.refuse_changes(files, running, control.ServiceOptions(**asked))
        return str(refused.value)

    for same in (control.ServiceOptions(), control.ServiceOptions(port=4950, password=False)):
        control.refuse_changes(files, RUNNING, same)
        control.refuse_changes(files, on_postgres, replace(same, database=url))
    assert refusal(port=4951).startswith("--port 4951: ") and "http://127.0.0.1:4950" in refusal(port=4951)
    assert refusal(password=True).startswith("--password: ") and "without one" in refusal(password=True)
    for told in (refusal(database=url), refusal(on_postgres, database="sqlite+aiosqlite:////srv/x.db")):
        assert told.startswith("--database: ") and "another database" in told
        assert "hush" not in told + on_postgres.database
