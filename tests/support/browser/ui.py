"""Prefect's UI as a person uses it: pages are reached by links and buttons, and found by what they say."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Locator, Page, Response, expect, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from flows.service_files import PAGES

LIMIT_MS, LOAD_MS = 60_000, 30_000
"""Longest wait for a page or a button, on a busy machine; and the time after which a page that stays empty, as one of
its first requests has failed, is loaded again."""
RUN_LIMIT_MS = 300_000
"""Longest wait for a flow run."""

expect.set_options(timeout=LIMIT_MS)


@contextmanager
def open_browser(program: str) -> Iterator[Browser]:
    """Headless Chromium by its path; as root it runs without its sandbox, and no proxy stands before this machine."""
    arguments = ["--no-proxy-server", *(["--no-sandbox"] if os.getuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


class Ui:
    """A window of the browser."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.main = page.get_by_role("main")
        self._address = address

    def log_in(self, login: str) -> None:
        """Paste what `up` tells into the page that asks for it, which is the first one that a browser comes to."""
        self.ask_for_login().fill(login)
        self.button("Login").click()
        expect(self.page.get_by_role("link", name="Deployments").first).to_be_visible()

    def ask_for_login(self) -> Locator:
        """Go to the UI without having logged in; returns the field of the login."""
        asks = self.page.get_by_role("textbox")
        self._load(self._address, asks)
        return asks

    def open_store(self) -> None:
        """Go to the pages of the store by the address that `up` tells."""
        self.page.goto(f"{self._address}{PAGES}/")

    def open_deployment(self, name: str = "finetune") -> None:
        """Go to the page of a deployment from the start page."""
        deployments = self.page.get_by_role("link", name="Deployments").first
        self._load(self._address, deployments)
        deployments.click()
        self.main.get_by_role("link", name=name, exact=True).first.click()
        lists = self.button("Schedule").first  # there are two for a moment, of a narrow window and of a wide one
        if not self._comes(lists):  # a request has failed
            self._load(self.page.url, lists)

    def open_form(self, name: str = "finetune") -> None:
        """Go to the form of a deployment."""
        self.open_deployment(name)
        self.page.get_by_role("button", name="Run", exact=True).first.click()
        self.page.get_by_role("menuitem", name="Custom run").click()
        expect(self.button("Submit")).to_be_visible()
        expect(self.main.get_by_text("(Optional)").first).to_be_visible()

    def open_run(self, flow_run: str) -> None:
        """Go to the page of a flow run."""
        self._load(f"{self._address}/v2/runs/flow-run/{flow_run}", self.page.get_by_role("tab", name="Logs"))

    def open_artifact(self, name: str) -> None:
        """Go from the page of a flow run to the newest version of one of its artifacts."""
        self.page.get_by_role("tab", name="Artifacts").click()
        self.main.get_by_role("link", name=name).click()
        self.main.locator("a[href*='/artifacts/artifact/']").first.click()

    def _comes(self, landmark: Locator) -> bool:
        try:
            landmark.wait_for(timeout=LOAD_MS)
        except PlaywrightTimeout:
            return False
        return True

    def _load(self, address: str, landmark: Locator) -> None:
        """Go to a page, and again where it stays without its landmark."""
        try:
            self.page.goto(address)
            landmark.wait_for(timeout=LOAD_MS)
        except PlaywrightTimeout:
            self.page.goto(address)
            landmark.wait_for()

    def button(self, name: str) -> Locator:
        """A button by its whole name."""
        return self.page.get_by_role("button", name=name, exact=True)

    def field(self, name: str, inside: Locator | None = None) -> Locator:
        """The text or number field of a parameter."""
        return (inside or self.main).get_by_label(re.compile(rf"^{name} \(Optional\)"))

    def choose(self, name: str, option: str, inside: Locator | None = None) -> None:
        """Choose a parameter's value in its dropdown."""
        listed = self._dropdown(name, inside or self.main)
        listed.get_by_role("option", name=option, exact=True).click()
        expect(listed).to_have_count(0)

    def options(self, name: str) -> list[str]:
        """What a dropdown offers."""
        listed = self._dropdown(name, self.main)
        expect(listed.get_by_role("option")).not_to_have_count(0)
        found = listed.get_by_role("option").all_inner_texts()
        self.page.keyboard.press("Escape")
        expect(listed).to_have_count(0)
        return found

    def _dropdown(self, name: str, inside: Locator) -> Locator:
        inside.get_by_role("button", name=f"Select {name}", exact=True).click()
        listed = self.page.get_by_role("listbox")
        expect(listed).to_be_visible()
        return listed

    def submit(self) -> str:
        """Submit the form; returns the id of the flow run that it started."""
        return self.click_submit()

    def click_submit(self, clicks: int = 1) -> str:
        """Click Submit, and wait until the server has started a flow run; returns its id."""
        with self.page.expect_response(_starts) as answer:
            self.button("Submit").click(click_count=clicks)
        assert answer.value.ok, answer.value.status
        return str(answer.value.json()["id"])

    def expect_state(self, state: str) -> None:
        """Wait until the page of the flow run that is open shows a state; it is loaded again now and then, since it
        asks no more once it has read of an end."""
        shown = self.main.get_by_text(state, exact=True).first
        for _ in range(RUN_LIMIT_MS // LOAD_MS):
            if self._comes(shown):
                return
            self.page.reload()
        expect(shown).to_be_visible()

    def choose_in_menu(self, item: str) -> None:
        """Choose an item of the menu of the page that is open."""
        self.main.get_by_role("button", name="Open menu").first.click()
        self.page.get_by_role("menuitem", name=item, exact=True).click()

    def confirm(self, button: str) -> None:
        """Press a button of the dialog that asks whether something shall be done."""
        dialog = self.page.get_by_role("alertdialog")
        dialog.get_by_role("button", name=button, exact=True).click()
        expect(dialog).to_have_count(0)

    def await_height(self, most_pixels: int) -> None:
        """Wait until the whole page is no higher: fields that are still being drawn make it higher for a moment."""
        self.page.wait_for_function("most => document.documentElement.scrollHeight <= most", arg=most_pixels)


def _starts(answer: Response) -> bool:
    """True for the server's answer to a form that is submitted."""
    return answer.request.method == "POST" and answer.url.endswith("/create_flow_run")
