"""What people do in the browser works: the login, the form, a run and its artifacts, a copy, a schedule, cancel
and retry."""

from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
import yaml
from playwright.sync_api import Browser, Locator, expect

from fleetune.store import RunRecord, Store
from flows.form import AS_GIVEN, STAGE_NAMES, names_in
from tests.support.browser.ui import Ui
from tests.support.flows.service.client import ServiceClient
from tests.support.flows.service.training import RETRIES, Training, write_run_file

BASE = "asteroid-b"
"""A run file of simulated devices: it ends after `plan` in seconds."""
MODEL, DATA = "vit-tiny", "digits"
"""A model that is prepared and profiled sooner than the run file's, and images of its size."""
SCREEN_PIXELS = 1080
EVERY_S = "20"
CONFIGS = Path(__file__).parents[2] / "configs"


def run_of(service: ServiceClient, flow_run: dict[str, Any]) -> RunRecord:
    """The run in the store that a flow run has made."""
    return Store(str(service.root)).runs.load(flow_run["parameters"]["base"])


def completed_automatic_runs(service: ServiceClient) -> Any:
    """Flow runs that a schedule has started and that have ended well."""
    found = service.call("POST", "/flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}})
    return [run for run in found if run["auto_scheduled"]]


def started_by_hand(service: ServiceClient) -> set[str]:
    """Ids of flow runs that no schedule has made."""
    return {run["id"] for run in service.call("POST", "/flow_runs/filter", {}) if not run["auto_scheduled"]}


def schedules(service: ServiceClient) -> set[str]:
    """Paths of the deployment's schedules in Prefect's API."""
    deployment = service.call("GET", "/deployments/name/finetune/finetune")
    return {f"/deployments/{deployment['id']}/schedules/{each['id']}" for each in deployment["schedules"]}


def fill_in_small_run(ui: Ui, inside: Locator | None = None) -> None:
    """Ask for a plan of a small model, which takes seconds."""
    ui.field("base", inside).fill(BASE)
    ui.choose("model", MODEL, inside)
    ui.choose("data", DATA, inside)
    ui.choose("until", "plan", inside)


def add_change(ui: Ui, change: str) -> None:
    """Type one more of the KEY=VALUE changes."""
    ui.button("Add item").click()
    ui.main.get_by_role("group").filter(has=ui.button("Add item")).get_by_role("textbox").last.fill(change)


def test_the_login(browser: Browser, service: ServiceClient) -> None:
    """A browser comes to the login, which says what it wants and tells a wrong password; the right one leads to the UI,
    and only then the address of the store's pages to them, as does a link with a key that is no longer valid."""
    with browser.new_context() as context:
        ui = Ui(context.new_page(), service.record.address)
        field = ui.ask_for_login()
        hint = "getComputedStyle(document.forms[0], '::after').content"
        assert "all that fleetune up tells as Login" in ui.page.evaluate(hint)
        field.fill("fleetune:wrong")
        ui.button("Login").click()
        expect(ui.page.get_by_text("Invalid credentials")).to_be_visible()
        ui.open_store()
        expect(ui.page.get_by_text("Log in to Prefect's UI in this browser")).to_be_visible()
        ui.log_in(service.files.login())
        ui.open_store()
        expect(ui.page.get_by_text(str(service.root.resolve()))).to_be_visible()
        ui.page.goto(f"{service.record.address}{service.files.pages_path(False)}/runs/none")
        ui.page.wait_for_url(f"**{service.files.pages_path(True)}/runs/none")


def test_a_run_by_the_form(ui: Ui, service: ServiceClient) -> None:
    """The form offers every strategy and stage; what was chosen is run, and its page leads to the store."""
    ui.open_form()
    assert ui.options("strategy") == [AS_GIVEN, *names_in("strategies")]
    assert ui.options("until")[1:] == STAGE_NAMES
    fill_in_small_run(ui)
    ui.choose("strategy", "dp")
    ui.field("rounds").fill("3")
    run = ui.submit()
    ui.open_run(run)
    ui.expect_state("Completed")
    expect(ui.main.get_by_text("asteroid-b · dp · 3 rounds").first).to_be_visible()
    made = run_of(service, service.flow_run(run))
    assert (made.config.strategy.name, made.config.training.rounds) == ("dp", 3)
    ui.open_artifact("asteroid-b-overview")
    expect(ui.main.get_by_role("table").filter(has_text="prepare").first).to_be_visible()
    link = ui.main.get_by_role("link", name=made.id).first.get_attribute("href")
    ui.page.goto(urljoin(ui.page.url, str(link)))
    expect(ui.page.get_by_text(made.id).first).to_be_visible()


def test_wrong_values_are_refused_in_the_form(ui: Ui, service: ServiceClient) -> None:
    """A number below its bound and a change that is no KEY=VALUE are said in the form, and no run exists."""
    ui.open_form()
    before = started_by_hand(service)
    ui.field("rounds").fill("-3")
    ui.button("Submit").click()
    assert "greater than or equal to 0" in ui.field("rounds").evaluate("field => field.validationMessage")
    ui.field("rounds").fill("0")
    add_change(ui, "nonsense")
    ui.button("Submit").click()
    expect(ui.main.get_by_text("'nonsense' does not match").first).to_be_visible()
    assert started_by_hand(service) == before


@pytest.mark.parametrize("name", ["finetune", "compare", "profile-fleet", "evaluate"])
def test_the_form_fits_one_screen(ui: Ui, name: str) -> None:
    """Every form, with Prefect's own fields and the button that submits it, is seen without scrolling on a screen of
    1080 lines, at 1400 pixels of width."""
    ui.open_form(name)
    ui.await_height(SCREEN_PIXELS)


def test_a_copy_reads_the_past_runs_config(ui: Ui, service: ServiceClient, tmp_path: Path) -> None:
    """`Copy to new run` with another strategy and a change runs from `plan` on the past run's config, not on today's
    run file."""
    for folder in ("fleets", "models", "data", "strategies", "devices"):
        (tmp_path / folder).symlink_to(CONFIGS / folder)
    file = tmp_path / "runs" / "mine.yaml"
    file.parent.mkdir()
    plain = {
        **yaml.safe_load((CONFIGS / "runs" / f"{BASE}.yaml").read_text()),
        "name": "mine",
        "model": MODEL,
        "data": DATA,
        "seed": 1,
    }
    file.write_text(yaml.safe_dump(plain))
    first = service.ended(service.start(base=str(file), until="plan"))
    assert first["state_name"] == "Completed", first["state"]["message"]
    file.write_text(yaml.safe_dump({**plain, "seed": 2}))

    ui.open_run(first["id"])
    ui.choose_in_menu("Copy to new run")
    expect(ui.field("base")).to_have_value(first["parameters"]["base"])
    ui.choose("strategy", "dp")
    ui.choose("start_from", "plan")
    add_change(ui, "training.weight_decay=0.01")
    copy = ui.submit()
    ui.open_run(copy)
    ui.expect_state("Completed")
    made = run_of(service, service.flow_run(copy))
    assert (made.config.seed, made.config.strategy.name) == (1, "dp")
    assert made.config.training.weight_decay == 0.01
    assert made.stage("plan").how == "ran"
    service.expect_tasks(copy, profile="Cached")


def test_a_schedule_fires_and_reuses(ui: Ui, service: ServiceClient) -> None:
    """A schedule that was saved in the dialog starts runs by itself, which reuse what is stored."""
    first = service.ended(service.start(base=BASE, model=MODEL, data=DATA, until="plan"))
    assert first["state_name"] == "Completed", first["state"]["message"]
    before = schedules(service)
    ui.open_deployment()
    ui.button("Schedule").click()
    dialog = ui.page.get_by_role("dialog")
    dialog.get_by_label("Value").fill(EVERY_S)
    dialog.get_by_role("combobox", name="Interval").click()
    ui.page.get_by_role("option", name="Seconds").click()
    fill_in_small_run(ui, dialog)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_be_hidden()
    (added,) = service.until(lambda: schedules(service) - before)  # the dialog goes before the server has answered
    try:
        fired = service.until(lambda: completed_automatic_runs(service))[0]
    finally:
        service.call("DELETE", added)
        service.idle()
    service.expect_tasks(fired["id"], plan="Cached")


def test_cancel_in_train_and_retry(ui: Ui, service: ServiceClient, tmp_path: Path) -> None:
    """Cancel ends a run in the middle of its training; Retry reuses the stages that had ended and goes on from the
    round it had come to."""
    run_file = write_run_file(tmp_path)
    training = Training(service, run_file, 1e-3, started=ui.open_run, until="monitor")
    ui.choose_in_menu("Cancel")
    ui.confirm("Cancel Flow Run")
    ui.expect_state("Cancelled")
    service.until(lambda: not training.alive)
    before = training.rounds
    for _ in range(RETRIES):  # once more where Prefect's signal for the cancelled process met the new one
        ui.choose_in_menu("Retry")
        ui.confirm("Retry")
        if service.ended(training.run)["state_name"] != "Cancelled":
            break
        ui.open_run(training.run)
    ui.expect_state("Completed")
    training.finished(before)
    service.expect_tasks(training.run, prepare="Cached")


def test_two_clicks_start_one_run(ui: Ui, service: ServiceClient) -> None:
    """A second click on Submit starts nothing, or a run that reads Skipped; the first one's run ends well."""
    service.idle()
    before = started_by_hand(service)
    ui.open_form()
    fill_in_small_run(ui)
    ui.click_submit(clicks=2)

    def ended() -> list[str] | None:  # the service may hear of the second click before the first one's
        states = [service.flow_run(run)["state_name"] for run in started_by_hand(service) - before]
        return states if "Completed" in states and set(states) <= {"Completed", "Skipped"} else None

    service.until(ended)
    service.idle()
    assert service.until(ended).count("Completed") == 1


def test_the_form_of_compare(ui: Ui, service: ServiceClient) -> None:
    """Strategies are compared from the form as it stands, and the page of the run leads to the answer."""
    ui.open_form("compare")
    ui.field("base").fill(BASE)
    ui.choose("model", MODEL)
    ui.choose("data", DATA)
    run = ui.submit()
    ui.open_run(run)
    ui.expect_state("Completed")
    answer = service.flow_run(run)["state"]["message"]
    assert "By the clock" in answer and " a round" in answer  # which is the fastest follows from this machine's pace
    ui.open_artifact("asteroid-b-compare")
    table = ui.main.get_by_role("table").filter(has_text="asteroid").first
    for strategy in ("dp", "single"):
        expect(table.get_by_text(strategy, exact=True).first).to_be_visible()
