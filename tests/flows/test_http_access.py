"""Proxy settings of the user, and addresses of a Prefect API that does not answer."""

import contextlib
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetune.errors import Refused, TryAgain
from flows import prefect_server
from flows.api import run_with
from flows.context import StageSelection
from flows.prefect_server import CLIENT_SECRET
from flows.service_files import ServiceFiles, ServiceRecord
from tests.support.flows.toy_pipeline import World, toy_context

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
OURS = "127.0.0.1,localhost,::1"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@contextlib.contextmanager
def answering(status: int, version_status: int | None = None, known: str = "") -> Iterator[str]:
    """The address of a server that answers every request with this status, and one for its version with another, but
    whoever is `known` by the header with 200."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = known and self.headers["Authorization"] == known
            other = version_status if self.path.endswith("/version") and version_status else status
            self.send_response(200 if is_known else other)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}/api"
        listening.shutdown()


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({}, {"NO_PROXY": OURS, "no_proxy": OURS}),
        ({"NO_PROXY": "intranet, 10.0.0.0/8"}, {"NO_PROXY": f"intranet,10.0.0.0/8,{OURS}"}),
        ({"no_proxy": "localhost"}, {"no_proxy": "localhost,127.0.0.1,::1"}),
        ({"no_proxy": "", "NO_PROXY": "a"}, {"no_proxy": OURS, "NO_PROXY": f"a,{OURS}"}),
        ({"NO_PROXY": "*"}, {"NO_PROXY": "*"}),
    ],
)
def test_the_users_list_grows(given: dict[str, str], made: dict[str, str]) -> None:
    """Loopback addresses are added once to NO_PROXY; entries of the user stay."""
    environment = dict(given)
    for _ in range(2):
        prefect_server.bypass_proxies_for_loopback(environment)
        assert environment == made


def test_a_proxy_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: every run ended in an unforeseen RuntimeError when HTTP_PROXY was set."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # where nobody listens
    environment: dict[str, str] = {}
    prefect_server.bypass_proxies_for_loopback(environment)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with answering(200) as address:
        prefect_server.check_api(address, "PREFECT_API_URL")


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9"])
def test_prefects_clients_read_no_proxy(proxy: str) -> None:
    """Bug: a proxy scheme that httpx does not support stopped Prefect's client before its first call."""
    program = """
import os
from flows import prefect_server
prefect_server.bypass_proxies_for_loopback(os.environ)
prefect_server.ignore_proxies()
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    print(client.hello().status_code)
"""
    with answering(200) as address:
        ended = subprocess.run(
            [sys.executable, "-c", program],
            env={**_environment(), "ALL_PROXY": proxy, "HTTP_PROXY": proxy, "PREFECT_API_URL": address},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.stdout.strip() == "200", ended.stderr[-2000:]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}


@pytest.mark.parametrize(("status", "version_status"), [(401, 401), (403, 403), (200, 401), (200, 403)])
def test_an_api_that_asks_for_a_password(
    status: int, version_status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a run with the address of a service that it had no password of ended with a traceback, after it had begun:
    everybody may ask such a service for its health. With the password it is one that answers."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    with answering(status, version_status, known="Basic YW5uOmhleQ==") as address:
        monkeypatch.setenv("PREFECT_API_URL", address)
        for login in (None, "ann:ho"):
            with (
                temporary_settings({PREFECT_API_URL: address, PREFECT_API_AUTH_STRING: login}),
                pytest.raises(Refused, match=f"PREFECT_API_URL is {address}, .* password .* PREFECT_API_AUTH_STRING"),
            ):
                prefect_server.check_configured_server(tmp_path)
        with temporary_settings({PREFECT_API_URL: address, PREFECT_API_AUTH_STRING: "ann:hey"}):
            prefect_server.check_configured_server(tmp_path)


def test_the_own_service_gets_its_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who names the service of the same store by its address has to give no password either."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    files = ServiceFiles(tmp_path)
    files.folder.mkdir(parents=True)
    monkeypatch.setenv(CLIENT_SECRET, "")
    monkeypatch.delenv(CLIENT_SECRET)
    with answering(200) as address, files.lock():
        files.write(
            ServiceRecord(
                address=address.removesuffix("/api"), root="", keeper=1, started="", authenticated=True, version="1"
            )
        )
        monkeypatch.setenv("PREFECT_API_URL", address)
        with temporary_settings({PREFECT_API_URL: address}):
            prefect_server.check_configured_server(files.home)
    assert os.environ[CLIENT_SECRET] == files.login()


def test_nobody_answers() -> None:
    """The message names the setting, the address, the reason and the remedy."""
    with answering(200) as address:
        pass  # gone now
    with pytest.raises(TryAgain) as caught:
        prefect_server.check_api(address, "PREFECT_API_URL")
    assert str(caught.value) == (
        f"PREFECT_API_URL is {address}, where nothing answers (Connection refused): start it, or unset PREFECT_API_URL "
        "to have a server started here"
    )


def test_the_proxy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address elsewhere is reached through the user's proxy, and the message names the proxy."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with pytest.raises(TryAgain, match=r"nothing answers through the proxy 127\.0\.0\.1 \(Connection refused\)"):
        prefect_server.check_api("http://prefect.example:4200/api", "PREFECT_API_URL")


def test_something_else_answers() -> None:
    """A server without Prefect's API is distinguished from a dead address."""
    with (
        answering(404) as address,
        pytest.raises(TryAgain, match=r"no Prefect API answers \(404 Not Found at .*/health"),
    ):
        prefect_server.check_api(address, "PREFECT_API_URL")


@pytest.mark.parametrize("address", ["", "127.0.0.1:4200", "file:///etc/passwd", "http://"])
def test_no_address(address: str) -> None:
    """Text that is not a URL is refused, not opened."""
    with pytest.raises(Refused, match="it is not a URL; give one such as http://127.0.0.1:4200/api"):
        prefect_server.check_api(address, "PREFECT_API_URL")


@pytest.mark.parametrize(
    "address", ["http://ann:hush@h/api", "http://hush@h/api", "ann:hush@h/api", "http://h/api?token=hush"]
)
def test_a_password_in_the_address_is_not_shown(address: str) -> None:
    """Bug: messages had the address with its password, and its port by Python's words: nonnumeric port 'hush@h'."""
    with pytest.raises(Refused, match=r"PREFECT_API_URL has a user, .* give .*PREFECT_API_AUTH_STRING=USER") as caught:
        prefect_server.check_api(address, "PREFECT_API_URL")
    assert "hush" not in str(caught.value)


def test_the_password_of_a_proxy_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: that of a proxy without http:// before it was."""
    monkeypatch.setenv("HTTP_PROXY", "ann:hush@127.0.0.1:9")
    with pytest.raises(TryAgain, match=r"through the proxy 127\.0\.0\.1:9 ") as caught:
        prefect_server.check_api("http://prefect.example:4200/api", "PREFECT_API_URL")
    assert "hush" not in str(caught.value)


def test_a_dead_address_is_told_before_anything_is_written(
    world: World, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the address, and neither a record nor a folder is written."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with answering(200) as address:
        pass
    monkeypatch.setenv("PREFECT_API_URL", address)
    with (
        temporary_settings({PREFECT_API_URL: address}),
        pytest.raises(TryAgain, match=f"PREFECT_API_URL is {address}, where nothing answers"),
    ):
        run_with(toy_context(root), world.config(), StageSelection())
    assert not root.exists()
