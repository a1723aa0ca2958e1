"""`python -m tests.support.browser.screenshots FOLDER`: takes the screenshots of docs/daily-use.md again.

Starts a service of an empty store, trains the demo, whose overview is one of the images, and does in the UI what the
page describes, on simulated devices. The machine should be idle: the overview shows the measured time of a round. No
page is open while the demo trains: one that follows a run takes processor time from the devices beside it.
"""

import io
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import FloatRect, expect

from tests.support.browser.program import chromium
from tests.support.browser.ui import Ui, open_browser
from tests.support.flows.service.client import ENDED, ServiceClient

WIDTH, HEIGHT, TALL_HEIGHT = 1100, 720, 1600
MARGIN = 16
COLOURS = 64
"""Colours of a stored image, which keep it small."""
GRAPH_MS = 4000
"""Time in which the page draws the stages of a run, on a canvas that does not tell when it has."""
ASK_S = 5.0


def main(folder: Path) -> None:
    """Write every screenshot into `folder`."""
    with tempfile.TemporaryDirectory(prefix="fleetune-screenshots-") as scratch:
        service = ServiceClient(Path(scratch) / "runs")
        service.command("up", "--port", str(service.free_port()))
        try:
            run = service.start(base="demo")
            while service.flow_run(run)["state_type"] not in ENDED:
                time.sleep(ASK_S)
            with open_browser(chromium()) as browser:
                page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce")
                ui = Ui(page, service.record.address)
                ui.log_in(service.files.login())
                take_overview(ui, run, folder / "overview.png")
                take_all(ui, folder)
        finally:
            service.command("down")


def take_overview(ui: Ui, run: str, file: Path) -> None:
    """The overview of a flow run, from its title to the table of its stages."""
    ui.open_run(run)
    ui.expect_state("Completed")
    ui.page.set_viewport_size({"width": WIDTH, "height": TALL_HEIGHT})
    ui.open_artifact("demo-overview")
    stages = ui.main.get_by_role("table").filter(has_text="discover").first
    expect(stages).to_be_visible()
    top, table = ui.main.get_by_role("heading", name="demo · ").last.bounding_box(), stages.bounding_box()
    assert top is not None and table is not None
    height = table["y"] + table["height"] - top["y"] + 2 * MARGIN
    clip = FloatRect(x=table["x"] - MARGIN, y=top["y"] - MARGIN, width=table["width"] + 2 * MARGIN, height=height)
    take(ui, file, clip)
    ui.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})


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


def take(ui: Ui, file: Path, clip: FloatRect | None = None) -> None:
    """Store what the window shows, or a part of it."""
    ui.page.mouse.move(0, 0)
    ui.page.wait_for_timeout(500)
    with Image.open(io.BytesIO(ui.page.screenshot(clip=clip))) as image:
        image.convert("RGB").quantize(COLOURS).save(file, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
