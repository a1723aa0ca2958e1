"""What the server shows of runs: the overview, the history, and the page of a dry run."""

import re
import urllib.request

from tests.support.flows.service.client import SMALL, SMALL_SETS, ServiceClient


def pages(service: ServiceClient, flow_run: str) -> dict[str, dict[str, str]]:
    """Key -> artifact of a flow run."""
    found = service.call("POST", "/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [flow_run]}}})
    return {artifact["key"]: artifact for artifact in found}


def test_a_run_has_one_overview_whose_links_work(service: ServiceClient) -> None:
    """A run publishes two pages, whatever the number of its stages; links lead to files that the server shows."""
    planned_by_no_other_test = ["training.batch_samples=1024"]
    run = service.start(base="asteroid-b", until="plan", changes=planned_by_no_other_test, **SMALL)
    assert service.ended(run)["state_name"] == "Completed"
    found = pages(service, run)
    assert set(found) == {"asteroid-b-overview", "asteroid-b-history"}
    overview = found["asteroid-b-overview"]
    assert re.fullmatch(r"forecast [\d.]+ s a round", overview["description"])
    assert overview["data"].count("data:image/svg+xml") == 2
    links = re.findall(r"\]\((/store/[^)]+)\)", overview["data"])
    addresses = [f"{service.record.address}{link}" for link in links]
    assert any(address.endswith("report.html") for address in addresses)
    for address in addresses:
        with urllib.request.urlopen(address) as answer:
            assert answer.status == 200
    assert "ran:" not in service.logged(run, "plan: done")


def test_a_changed_run_shows_what_changed(service: ServiceClient) -> None:
    """A copy of a run with a change has the difference on its page, and a dry run says it before."""
    first = service.ended(service.start(base="asteroid-b", until="plan", rounds=5, **SMALL))["parameters"]["base"]
    changed = {"base": first, "until": "plan", "rounds": 6}
    dry = service.start(**changed, dry_run=True)
    ended = service.ended(dry)
    assert ended["state_name"] == "DryRun" and ended["state"]["message"].startswith("would run discover")
    said = pages(service, dry)["asteroid-b-dry-run"]
    does, _, copied = ended["state"]["message"].partition("; next: ")
    assert said["description"] == does and f" rerun {first} --until plan --set training.rounds=6" in copied
    run = service.start(**changed)
    service.ended(run)
    for page in (said, pages(service, run)["asteroid-b-overview"]):
        assert f"/runs/{first})" in page["data"] and "| training.rounds | 5 | 6 |" in page["data"]


def test_a_run_of_the_command_line_has_the_same_pages_and_log(service: ServiceClient) -> None:
    """Runs are inspected in one place, however they were started; the command's own output has no line of that log."""
    before = service.runs_of_commands()
    done = service.command("run", "configs/runs/asteroid-b.yaml", "--until", "plan", *SMALL_SETS)
    assert "plan: " not in done.stdout and done.stderr == ""
    (newest,) = service.runs_of_commands() - before
    assert set(pages(service, newest)) == {"asteroid-b-overview", "asteroid-b-history"}
    assert all(service.logged(newest, f"{stage}: ") for stage in ("discover", "prepare", "plan"))
