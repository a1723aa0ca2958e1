"""The Prefect server of a run: the one that the user configured, else an embedded one.

An embedded server is a child process with its database in the store, and is killed with its parent, unlike Prefect's
own temporary server. None is started when PREFECT_API_URL or PREFECT_HOME is set, or Prefect is imported already.

`python -m flows.prefect_server` is that child process. It binds a loopback port itself and prints it, so that no other
process can take it in between. The secret of its clients arrives on the first line of stdin, which no list of processes
shows.
"""

import atexit
import http.client
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from fleetune import filesystem
from fleetune.errors import TryAgain
from fleetune.launching import Command, Job, ProcessLauncher
from fleetune.store import Lock
from flows import http_access
from flows.service_files import ServiceFiles, ServiceRecord

HOST = "127.0.0.1"
API_URL = "PREFECT_API_URL"
"""Prefect's variable for the address of its API."""
SECRET, CLIENT_SECRET = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"
"""Prefect's variables for the secret: of the server, and of its clients."""
START_TIMEOUT_S, RESTART_TIMEOUT_S, POLL_S = 180.0, 30.0, 0.1
QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "DO_NOT_TRACK": "1",
}
"""Settings of every server and client: nothing is reported to anybody."""
SETTINGS = {
    **QUIET,
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",  # the command line prints errors in one sentence
    "PREFECT_LOGGING_ROOT_LEVEL": "CRITICAL",  # services of Prefect's clients that log outside of its loggers
}
SERVER_ONLY = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
"""Disables the user interface and the scheduling services, as Prefect's own temporary server does."""


def check_configured_server() -> None:
    """Check that a server which the user configured answers, before anything is written.

    Call it before Prefect is imported, as `ensure`. Refused or TryAgain when the server does not answer.
    """
    http_access.bypass_proxies_for_loopback(os.environ)
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if not _is_configured():
        return
    from prefect.settings import PREFECT_API_URL  # also reads profiles and settings files

    address = PREFECT_API_URL.value()
    if address is None or http_access.is_loopback(address):
        http_access.ignore_proxies()
    if address is not None:
        http_access.check_api(address, "PREFECT_API_URL")


def ensure(home: Path) -> None:
    """Connect this process's Prefect to a server: the user's, else the one that `fleetune up` has started for the store
    whose folder `home` is, else one of its own, which ends with this process.

    Call it after `check_configured_server`. TryAgain when the server does not come up.
    """
    if _is_configured():
        return
    home.mkdir(parents=True, exist_ok=True)
    os.environ["PREFECT_HOME"] = str(home.resolve())
    pause = threading.Event().wait
    service = ServiceFiles(home.parent).running()
    if service is not None:
        _connect(service, ServiceFiles(home.parent).auth_string(service), pause)
        return
    with Lock(home / "start.lock", pause):  # the first start creates the database
        os.environ["PREFECT_API_URL"] = start(home, pause)
    http_access.ignore_proxies()


def _connect(service: ServiceRecord, auth_string: str, pause: Callable[[float], bool]) -> None:
    """Use the server of a running service, which may just be starting again."""
    port = urlsplit(service.address).port or 0
    for _ in range(int(RESTART_TIMEOUT_S / POLL_S)):
        if answers(port):
            break
        pause(POLL_S)
    else:
        raise TryAgain(f"{service.address}: the server of this store does not answer; run fleetune down, then again")
    os.environ["PREFECT_API_URL"] = service.api
    if auth_string:
        os.environ[CLIENT_SECRET] = auth_string
    http_access.ignore_proxies()


def _is_configured() -> bool:
    return "PREFECT_API_URL" in os.environ or "PREFECT_HOME" in os.environ or "prefect" in sys.modules


def start(home: Path, pause: Callable[[float], bool]) -> str:
    """Start a server that accepts only this process, wait until it answers, and return the address of its API."""
    secret = f"fleetune:{secrets.token_urlsafe(32)}"
    job = ProcessLauncher().start(
        Command(
            module="flows.prefect_server",
            environment=SERVER_ONLY,
            first_line=secret.encode(),
            log=home / "server.log",
        )
    )
    atexit.register(job.stop)
    port = int(next(job.lines(), 0)) or None  # None when the server ended before it had a port
    if port is None:
        job.wait()
    _wait(port, job, home, pause)
    os.environ[CLIENT_SECRET] = secret
    return f"http://{HOST}:{port}/api"


def _wait(port: int | None, job: Job, home: Path, pause: Callable[[float], bool]) -> None:
    for _ in range(int(START_TIMEOUT_S / POLL_S)):
        if job.poll() is not None:
            if full := filesystem.find_full_disk({filesystem.STORE: home}):
                raise full
            raise TryAgain(f"Prefect's server did not start ({job.tail(1).strip() or 'no reason given'}); run it again")
        if port is not None and answers(port):
            return
        pause(POLL_S)
    job.stop()
    late = f"Prefect's server did not answer within {START_TIMEOUT_S:.0f} s"
    raise TryAgain(f"{late}; run it again on a less busy machine")


def answers(port: int) -> bool:
    """True when Prefect's API on this port of loopback is healthy."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/api/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def main() -> None:
    """Serve until the process is terminated."""
    os.environ[SECRET] = os.environ[CLIENT_SECRET] = sys.stdin.readline().strip()  # before Prefect reads its settings
    with socket.create_server((HOST, 0), backlog=2048) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        import uvicorn
        from prefect.server.api.server import create_app

        config = uvicorn.Config(create_app, factory=True, log_level="error", lifespan="on")
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
