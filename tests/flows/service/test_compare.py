"""The deployments `compare`, `profile-fleet` and `evaluate`, started as their forms do."""

import urllib.error
import urllib.request

import pytest

from fleetune.store import Store
from flows.comparison import archive
from tests.support.flows.service.client import SMALL, ServiceClient


def artifacts(service: ServiceClient, flow_run: str) -> list[dict[str, str]]:
    """The artifacts of a flow run."""
    found: list[dict[str, str]] = service.call(
        "POST", "/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [flow_run]}}}
    )
    return found


def test_strategies_are_compared(service: ServiceClient) -> None:
    """A comparison is one artifact with its answer and a page in the store; again, nothing is planned anew."""
    run = service.start("compare", base="asteroid-b", strategies=["single", "dp", "pp-groups"], **SMALL)
    ended = service.ended(run)
    assert ended["state_name"] == "Completed", ended["state"]["message"]
    assert ended["name"] == "asteroid-b · compare single, dp, pp-groups"
    assert "single is the fastest" in ended["state"]["message"]
    [shown] = artifacts(service, run)
    said, _, copied = ended["state"]["message"].partition("; next: ")
    assert shown["key"] == "asteroid-b-compare" and shown["description"] == said
    service.expect_tasks(run, configure="Completed", fleet="Completed", forecasts="Completed")
    service.expect_tasks(run, **{"plan single": "Completed", "plan dp": "Completed", "plan pp-groups": "Refused"})
    assert "data:image/svg+xml" in shown["data"] and "pp-groups: strategy pp: option groups" in shown["data"]
    store = Store(service.root)
    newest = archive.every(store)[0]
    assert f" show {newest.by_forecast[0].run} plan" in copied, "nothing can be trained on a simulated fleet"
    assert newest.measured_by == ended["parameters"]["base"], "a copy reads the config of this comparison"
    base = f"{service.record.address}{service.files.pages_path(True)}"
    for page in (f"{base}/comparisons/{newest.id}/comparison.html", f"{base}/"):
        with urllib.request.urlopen(page) as answer:
            assert newest.id in (text := answer.read().decode()) or "single" in text
            assert "sandbox" in answer.headers["Content-Security-Policy"]
    again = service.start("compare", base=newest.measured_by, strategies=["dp", "single"])
    assert service.ended(again)["state_name"] == "Completed"
    runs = {row.run for row in archive.every(store)[0].strategies}
    assert runs.isdisjoint({row.run for row in newest.strategies})
    assert {stage.how for run in runs for stage in store.runs.load(run).stages} == {"reused"}


def test_a_comparison_is_cancelled(service: ServiceClient) -> None:
    """Bug: a comparison that was cancelled in the UI read Crashed, and the run within it "stopped by Ctrl-C". Stages
    that had ended stay as they are.
    """
    run = service.start("compare", base="demo", strategies=["single"], changes=["seed=77"])
    part = service.until(lambda: parts(service, run))[0]
    service.expect_tasks(part, discover="Completed", prepare="Running")
    service.set_state(run, "CANCELLING", "Cancelling")
    assert service.ended(run)["state_name"] == "Cancelled"
    assert service.ended(part)["state"]["message"].startswith("stopped with the run that it is a part of; next: ")
    service.expect_tasks(run, configure="Completed", fleet="Cancelled")
    assert "RolledBack" not in service.tasks(part).values()


def parts(service: ServiceClient, run: str) -> list[str]:
    """Ids of the runs within a flow run."""
    asked = {"flow_runs": {"parent_flow_run_id": {"any_": [run]}}}
    return [one["id"] for one in service.call("POST", "/flow_runs/filter", asked)]


def test_a_comparison_that_cannot_be_is_refused(service: ServiceClient) -> None:
    """An unknown strategy is refused by the form, and training on simulated devices before any run begins."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        service.start("compare", base="asteroid-b", strategies=["astroid"])
    with refused.value as answer:
        assert b"asteroid" in answer.read()
    run = service.start("compare", base="asteroid-b", strategies=["single"], train=True)
    ended = service.ended(run)
    assert ended["state_name"] == "Refused" and "simulated" in ended["state"]["message"]
    assert ended["state"]["message"].partition("; next: ")[2].count("--train") == 0, "it would be refused again"
    service.expect_tasks(run, configure="Refused")
    assert len(service.tasks(run)) == 1 and "Traceback" not in service.logs(run)


def test_a_fleet_is_profiled(service: ServiceClient) -> None:
    """`profile-fleet` ends after the profile, and what it has measured cannot be evaluated."""
    run = service.start("profile-fleet", base="digits-vit", fleet="asteroid-b")
    ended = service.ended(run)
    assert ended["state_name"] == "Completed", ended["state"]["message"]
    shown = service.until(lambda: found if len(found := service.tasks(run)) >= 4 else None)
    assert set(shown) == {"configure", "discover", "prepare", "profile"}
    evaluation = service.ended(service.start("evaluate", run=ended["parameters"]["base"]))
    assert evaluation["state_name"] == "Refused" and "no plan to evaluate" in evaluation["state"]["message"]
