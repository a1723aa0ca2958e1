"""The Prefect server of a run: the one that the user configured, else an embedded one; and HTTP access to it.

An embedded server is a child process with its database in the store, and is killed with its parent, unlike Prefect's
own temporary server. None is started when PREFECT_API_URL or PREFECT_HOME is set, or Prefect is imported already.

Loopback addresses bypass proxies, and an API that the user configured is checked before anything is written.
"""

import atexit
import functools
import http.client
import os
import secrets
import ssl
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from urllib.parse import urlsplit

from fleetune import filesystem
from fleetune.contracts.url_passwords import holds_password
from fleetune.errors import Refused, TryAgain
from fleetune.launching import Command, Job, ProcessLauncher
from fleetune.library_sources import NOWHERE
from fleetune.store import Lock
from flows.service_files import ServiceFiles, ServiceRecord, basic_authorization, check_owner, make_home

LOOPBACK = ("127.0.0.1", "localhost", "::1")
VARIABLES = ("NO_PROXY", "no_proxy")
TIMEOUT_S = 10.0
NEEDS_KEY = (401, 403)
"""Statuses of an API that does not let in whoever asks."""


def bypass_proxies_for_loopback(environment: MutableMapping[str, str]) -> None:
    """Add loopback addresses to NO_PROXY, for this process and its children; existing entries stay."""
    for name in [name for name in VARIABLES if name in environment] or VARIABLES:
        listed = [host.strip() for host in environment.get(name, "").split(",") if host.strip()]
        if "*" not in listed:  # which means all, and only by itself
            environment[name] = ",".join([*listed, *(host for host in LOOPBACK if host not in listed)])


def ignore_proxies() -> None:
    """Make Prefect's clients ignore the proxy variables, since a proxy scheme that httpx does not support (socks5)
    makes every call fail. Only for a server of this machine; imports Prefect."""
    from prefect.client import base

    for client in (base.PrefectHttpxAsyncClient, base.PrefectHttpxSyncClient):
        client.__init__ = functools.partialmethod(client.__init__, trust_env=False)  # type: ignore[assignment]


def is_loopback(address: str) -> bool:
    """True for a URL on a loopback address."""
    return urlsplit(address).hostname in LOOPBACK


def check_api(address: str, name: str, credentials: Mapping[str, str] | None = None) -> None:
    """Ask the Prefect API at `address`, the value of setting `name`, for its health and version, through proxies as
    clients do. `credentials`: headers that say who asks.

    Refused: not an address, one with a password, or an API that lets in others only. TryAgain: no such API answers
    there.
    """
    if "@" in address or holds_password(address):
        raise Refused(
            f"{name} has a user, password or token in it, which messages and records would show: give the address "
            f"without, and {CLIENT_SECRET}=USER:PASSWORD or PREFECT_API_KEY"
        )
    instead = f"or unset {name} to have a server started here"
    given = f"{name} is {address}"
    if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).hostname:
        raise Refused(f"{given}: it is not a URL; give one such as http://127.0.0.1:4200/api, {instead}")
    health, version = (
        urllib.request.Request(address.rstrip("/") + path, headers=dict(credentials or {}))
        for path in ("/health", "/admin/version")
    )
    try:
        status = _status_of(health)
        lets_in = status not in NEEDS_KEY and _status_of(version) not in NEEDS_KEY  # everybody may ask for the health
    except ssl.SSLError:
        return  # a server answers; the client decides whether to trust it
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = getattr(error, "reason", None) or error
        if isinstance(why, ssl.SSLError):
            return
        why = getattr(why, "strerror", None) or why
        raise TryAgain(f"{given}, where nothing answers{_proxy_note(address)} ({why}): start it, {instead}") from None
    if not lets_in:
        raise Refused(
            f"{given}, which asks for a password that it is not given: set {CLIENT_SECRET} (to what fleetune up tells "
            f"as Login, if that has started it) or PREFECT_API_KEY, {instead}"
        )
    if status != http.client.OK:
        said = f"{status} {http.client.responses.get(status, '')}".rstrip()
        raise TryAgain(
            f"{given}, where no Prefect API answers{_proxy_note(address)} ({said} at {health.full_url}): "
            f"correct the address, {instead}"
        )


def _status_of(request: urllib.request.Request) -> int:
    """The HTTP status of the answer."""
    try:
        with urllib.request.build_opener().open(request, timeout=TIMEOUT_S) as answer:  # reads the proxies of now
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _proxy_note(address: str) -> str:
    """`through the proxy HOST` when the address is reached through one, else empty."""
    parts = urlsplit(address)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(parts.hostname or ""):
        return ""
    return f" through the proxy {urlsplit(proxy).hostname or proxy.rpartition('@')[2]}"


HOST = "127.0.0.1"
API_URL = "PREFECT_API_URL"
"""Prefect's variable for the address of its API."""
DATABASE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
"""Prefect's variable for its database. Only a server gets it: it may hold a password."""
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
NO_FILES = {"PREFECT_PROFILES_PATH": NOWHERE, "PREFECT_LOGGING_SETTINGS_PATH": NOWHERE}
"""Settings of processes whose PREFECT_HOME is in a store: files there are data, and a profile or a configuration of
logging would run whatever they say."""
SERVER_ONLY = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
"""Disables the user interface and the scheduling services, as Prefect's own temporary server does."""


def check_configured_server(home: Path) -> None:
    """Check that a server which the user configured answers, before anything is written; the service of the store whose
    folder `home` is gets its password, also by its address.

    Call it before Prefect is imported, as `ensure`. Refused or TryAgain when the server does not answer.
    """
    filesystem.check_home()  # Prefect asks for it while it is imported
    bypass_proxies_for_loopback(os.environ)
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if not _is_configured():
        return check_owner(home)
    files = ServiceFiles(home.parent)
    if (service := files.running()) is not None and os.environ.get(API_URL) == service.api and service.authenticated:
        check_owner(home)
        os.environ.setdefault(CLIENT_SECRET, files.login())
    from prefect.settings import PREFECT_API_URL  # also reads profiles and settings files

    address = PREFECT_API_URL.value()
    if address is None or is_loopback(address):
        ignore_proxies()
    if address is not None:
        check_api(address, API_URL, _credentials())


def _credentials() -> dict[str, str]:
    """Headers by which Prefect's clients say who they are; imports Prefect."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_KEY, PREFECT_CLIENT_CUSTOM_HEADERS

    headers = dict(PREFECT_CLIENT_CUSTOM_HEADERS.value() or {})
    if login := PREFECT_API_AUTH_STRING.value():
        headers["Authorization"] = basic_authorization(login)
    elif key := PREFECT_API_KEY.value():
        headers["Authorization"] = f"Bearer {key}"
    return headers


def ensure(home: Path) -> None:
    """Connect this process's Prefect to a server: the user's, else the one that `fleetune up` has started for the store
    whose folder `home` is, else one of its own, which ends with this process.

    Call it after `check_configured_server`. TryAgain when the server does not come up.
    """
    if _is_configured():
        return
    make_home(home)
    os.environ["PREFECT_HOME"] = str(home.resolve())
    for name, value in NO_FILES.items():
        os.environ.setdefault(name, value)
    pause = threading.Event().wait
    service = ServiceFiles(home.parent).running()
    if service is not None:
        _connect(service, ServiceFiles(home.parent).auth_string(service), pause)
        return
    with Lock(home / "start.lock", pause, brief=True):  # the first start creates the database
        os.environ["PREFECT_API_URL"] = start(home, pause)
    ignore_proxies()


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
    ignore_proxies()


def _is_configured() -> bool:
    return "PREFECT_API_URL" in os.environ or "PREFECT_HOME" in os.environ or "prefect" in sys.modules


def start(home: Path, pause: Callable[[float], bool]) -> str:
    """Start a server that accepts only this process, wait until it answers, and return the address of its API."""
    secret = f"fleetune:{secrets.token_urlsafe(32)}"
    job = ProcessLauncher().start(
        Command(
            module="flows.embedded_server",
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
