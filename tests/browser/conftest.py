"""Tests with a browser: left out where there is none, and never unnoticed.

All of them carry the marker `browser`; those of a process share a service. With FLEETUNE_BROWSER_TESTS=required it is
an error to leave them out. Fixtures live as long as this package: Playwright's event loop would disturb the tests of
others.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.browser.program import chromium
from tests.support.flows.service.client import ServiceClient
from tests.support.left_out import LeftOut, leave_out

if TYPE_CHECKING:
    from playwright.sync_api import Browser, StorageState

    from tests.support.browser.ui import Ui

HERE = Path(__file__).parent
WIDTH, HEIGHT = 1400, 900
OF_THE_DRAWING = tuple(f"Cannot read properties of null (reading '{name}')" for name in ("x", "addChild"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of this folder; leave them out where there is no browser."""
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker("browser")
    if ours and not chromium():
        said = LeftOut(tests=len(ours), what="a browser", why="no chromium", how="make browser, then make test")
        leave_out(config, items, ours, said, "FLEETUNE_BROWSER_TESTS")


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceClient]:
    """A service of an empty store, started and stopped by the commands that people use."""
    client = ServiceClient(tmp_path_factory.mktemp("browser") / "runs")
    client.command("up", "--port", str(client.free_port()))
    yield client
    client.command("down")


@pytest.fixture(scope="package")
def browser() -> "Iterator[Browser]":
    """A headless browser."""
    from tests.support.browser.ui import open_browser

    with open_browser(chromium()) as opened:
        yield opened


@pytest.fixture(scope="package")
def logged_in(browser: "Browser", service: ServiceClient) -> "StorageState":
    """What a browser keeps once somebody has logged in."""
    from tests.support.browser.ui import Ui

    with browser.new_context() as context:
        Ui(context.new_page(), service.record.address).log_in(service.files.login())
        return context.storage_state()


@pytest.fixture
def ui(browser: "Browser", service: ServiceClient, logged_in: "StorageState") -> "Iterator[Ui]":
    """Prefect's UI of the service in a window of its own, of somebody who has logged in; an error of its scripts
    fails the test, except for two that its drawing of a run raises now and then when the page is left.
    """
    from playwright.sync_api import ViewportSize

    from tests.support.browser.ui import LIMIT_MS, Ui

    window = ViewportSize(width=WIDTH, height=HEIGHT)
    page = browser.new_page(viewport=window, reduced_motion="reduce", storage_state=logged_in)
    page.set_default_timeout(LIMIT_MS)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield Ui(page, service.record.address)
    page.close()
    assert not [error for error in errors if error not in OF_THE_DRAWING], errors
