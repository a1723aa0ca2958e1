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
from tests.support.flows.toy_pipeline import World, toy_context

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
OURS = "127.0.0.1,localhost,::1"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@contextlib.contextmanager
def answering(status: int) -> Iterator[str]:
    """The address of a server that answers every request with this status."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
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


@pytest.mark.parametrize("status", [200, 401, 403])
def test_an_api_that_answers_is_one(status: int) -> None:
    """An API that asks for a key counts as one that answers."""
    with answering(status) as address:
        prefect_server.check_api(address, "PREFECT_API_URL")


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
