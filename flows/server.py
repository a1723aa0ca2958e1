"""The embedded Prefect server: one per process, with its database in the store, gone when the process is.

Prefect would start a temporary server by itself, but one that outlives a killed run; this one is a child of our
launcher, which the system ends together with its parent. A user who has set PREFECT_API_URL or PREFECT_HOME (or has
imported Prefect already) gets exactly what those say instead.
"""

import atexit
import http.client
import os
import socket
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from fleetune.errors import TryAgain
from fleetune.launching import Command, Job, ProcessLauncher
from fleetune.store import Lock

START_S, ASK_S = 180.0, 0.1
SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "DO_NOT_TRACK": "1",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",  # errors are told by us, in one sentence
}
SERVER_ONLY = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
"""No pages to serve and no schedules to keep: the services for those stay off, as in Prefect's own temporary server."""


def ensure(home: Path) -> None:
    """Have this process's Prefect talk to a server; starts one with its files in `home` unless the user named one.

    To be called before Prefect is imported. TryAgain when the server does not come up.
    """
    named = "PREFECT_API_URL" in os.environ or "PREFECT_HOME" in os.environ or "prefect" in sys.modules
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if named:
        return
    home.mkdir(parents=True, exist_ok=True)
    os.environ["PREFECT_HOME"] = str(home.resolve())
    pause = threading.Event().wait
    with Lock(home / "start.lock", pause):  # the first start makes the database
        os.environ["PREFECT_API_URL"] = start(home, pause)


def start(home: Path, pause: Callable[[float], bool]) -> str:
    """Start a server and wait until it answers; its API's address."""
    port = _free_port()
    spec = find_spec("prefect")
    assert spec is not None and spec.submodule_search_locations
    app = ("--app-dir", str(Path(next(iter(spec.submodule_search_locations))).parent), "--factory")
    where = ("--host", "127.0.0.1", "--port", str(port), "--log-level", "error", "--lifespan", "on")
    job = ProcessLauncher().start(
        Command(
            module="uvicorn",
            arguments=(*app, "prefect.server.api.server:create_app", *where),
            environment=SERVER_ONLY,
            log=home / "server.log",
        )
    )
    atexit.register(job.stop)
    _wait(port, job, pause)
    return f"http://127.0.0.1:{port}/api"


def _wait(port: int, job: Job, pause: Callable[[float], bool]) -> None:
    for _ in range(int(START_S / ASK_S)):
        if job.poll() is not None:
            raise TryAgain(f"Prefect's server did not start ({job.tail(1).strip() or 'no reason given'}); run it again")
        if _answers(port):
            return
        pause(ASK_S)
    job.stop()
    raise TryAgain(f"Prefect's server did not answer within {START_S:.0f} s; run it again on a less busy machine")


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/api/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
