"""Tests with a browser: left out in one line where it or Playwright is missing, and never unnoticed.

All of them carry the marker `browser`; those of a process share a service. With FLEETUNE_BROWSER_TESTS=required it is
an error to leave them out. Fixtures live as long as this package: Playwright's event loop would disturb the tests of
others.
"""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.browser.program import chromium
from tests.support.flows.service.client import ServiceClient

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.support.browser.ui import Ui

HERE = Path(__file__).parent
REQUIRED = "required"
WIDTH, HEIGHT = 1400, 900
OF_THE_DRAWING = tuple(f"Cannot read properties of null (reading '{name}')" for name in ("x", "addChild"))


def lack() -> str:
    """What these tests need and this machine has not; empty where they can run."""
    if find_spec("playwright") is None:
        return "the browser tests are left out (no playwright in this environment): make test installs it"
    if not chromium():
        return "the browser tests are left out (no chromium): make browser, then make test, includes them"
    return ""


LACK = lack()
collect_ignore_glob = ["test_*.py"] if LACK else []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of this folder; an error where they must run and cannot."""
    if LACK and os.environ.get("FLEETUNE_BROWSER_TESTS") == REQUIRED:
        raise pytest.UsageError(f"FLEETUNE_BROWSER_TESTS=required, but {LACK}")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("browser")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """To have left everything out is a failure where it is not allowed, also when other processes have collected."""
    if LACK and os.environ.get("FLEETUNE_BROWSER_TESTS") == REQUIRED:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
    elif LACK and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if LACK and reporter is not None:
        reporter.write_line(LACK)


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceClient]:
    """A service of an empty store, started and stopped by the commands that people use."""
    client = ServiceClient(tmp_path_factory.mktemp("browser") / "runs")
    client.command("up", "--port", str(client.free_port()), "--no-password")
    yield client
    client.command("down")


@pytest.fixture(scope="package")
def browser() -> "Iterator[Browser]":
    """A headless browser."""
    from tests.support.browser.ui import open_browser

    with open_browser(chromium()) as opened:
        yield opened


@pytest.fixture
def ui(browser: "Browser", service: ServiceClient) -> "Iterator[Ui]":
    """Prefect's UI of the service in a window of its own; an error of its scripts fails the test, except for two that
    its drawing of a run raises now and then when the page is left.
    """
    from tests.support.browser.ui import LIMIT_MS, Ui

    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce")
    page.set_default_timeout(LIMIT_MS)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield Ui(page, service.record.address)
    page.close()
    assert not [error for error in errors if error not in OF_THE_DRAWING], errors
