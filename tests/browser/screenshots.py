"""`python -m tests.browser.screenshots FOLDER`: takes the screenshots of docs/daily-use.md again.

Starts a service of an empty store, and does in its UI what the page describes, on simulated devices.
"""

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import expect

from tests.browser.conftest import chromium
from tests.browser.ui import Ui, open_browser
from tests.flows.service.client import ServiceClient

WIDTH, HEIGHT = 1100, 720
COLOURS = 64
"""Colours of a stored image, which keep it small."""


GRAPH_MS = 4000
"""Time in which the page draws the stages of a run, on a canvas that does not tell when it has."""


def main(folder: Path) -> None:
    """Write every screenshot into `folder`."""
    with tempfile.TemporaryDirectory(prefix="fleetune-screenshots-") as scratch:
        service = ServiceClient(Path(scratch) / "runs")
        service.command("up", "--port", str(service.free_port()), "--no-password")
        try:
            with open_browser(chromium()) as browser:
                page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce")
                take_all(Ui(page, service.record.address), folder)
        finally:
            service.command("down")


def take_all(ui: Ui, folder: Path) -> None:
    """A run by the form, its page, a copy of it, and a schedule."""
    ui.open_form()
    ui.field("base").fill("asteroid-b")
    ui.choose("strategy", "pp")
    ui.choose("model", "vit-tiny")
    ui.choose("data", "digits")
    take(ui, folder / "form.png")
    ui.choose("until", "plan")
    run = ui.submit()
    ui.open_run(run)
    ui.expect_state("Completed")
    ui.open_run(run)  # draws its stages again, each at its place
    ui.page.wait_for_timeout(GRAPH_MS)
    take(ui, folder / "run.png")
    ui.choose_in_menu("Copy to new run")
    expect(ui.button("Submit")).to_be_visible()
    ui.choose("strategy", "asteroid")
    take(ui, folder / "copy.png")
    ui.open_deployment()
    ui.button("Schedule").click()
    dialog = ui.page.get_by_role("dialog")
    dialog.get_by_role("tab", name="Cron").click()
    dialog.get_by_role("textbox", name="Value").fill("0 2 * * *")
    take(ui, folder / "schedule.png")


def take(ui: Ui, file: Path) -> None:
    """Store what the window shows."""
    ui.page.mouse.move(0, 0)
    ui.page.wait_for_timeout(500)
    with Image.open(io.BytesIO(ui.page.screenshot())) as image:
        image.convert("RGB").quantize(COLOURS).save(file, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
