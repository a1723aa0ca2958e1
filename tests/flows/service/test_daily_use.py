"""Schedules and automations on a real server: runs fire, are skipped, retried and told of."""

import datetime
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleetune.store import Store
from flows.service.automations import OWN, RETRIES
from tests.support.flows.service.client import ENDED, SMALL, SMALL_SETS, ServiceClient

UNREACHABLE = 'fleet={devices: [{name: far, launcher: docker, engine: away}], engines: [{name: away, address: "%s"}]}'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: its configs are those of the project."""
    shutil.copytree("configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def service_at_home(service: ServiceClient, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceClient]:
    """The service, whose `up` is called in `home` by a test, and in the project again after it."""
    yield service
    for one in schedules(service):
        service.call("DELETE", f"{deployment(service)}/schedules/{one['id']}")
    monkeypatch.undo()
    service.command("up")
    service.idle()


def deployment(service: ServiceClient) -> str:
    """Path of `finetune` in the API."""
    return f"/deployments/{service.call('GET', '/deployments/name/finetune/finetune')['id']}"


def schedules(service: ServiceClient) -> list[Any]:
    """The schedules of `finetune`."""
    return list(service.call("GET", "/deployments/name/finetune/finetune")["schedules"])


def test_the_server_has_the_times_of_cron(service: ServiceClient, home: Path) -> None:
    """The running service schedules a night on which the clock goes forward soon after the change, as cron(8) does;
    Prefect's own times are an hour early."""
    night = {"cron": "0 2 * * *", "timezone": "Europe/Berlin"}
    (made,) = service.call("POST", f"{deployment(service)}/schedules", [{"active": True, "schedule": night}])
    span = {"start_time": "2027-03-27T12:00:00Z", "end_time": "2027-03-29T12:00:00Z"}
    service.call("POST", f"{deployment(service)}/schedule", span)
    found = service.call("POST", "/flow_runs/filter", {"sort": "EXPECTED_START_TIME_ASC"})
    service.call("DELETE", f"{deployment(service)}/schedules/{made['id']}")
    times = [run["expected_start_time"] for run in found if run["auto_scheduled"]]
    assert [time[:16] for time in times if "2027-03-27" < time < "2027-03-30"] == [
        "2027-03-28T01:00",
        "2027-03-29T00:00",
    ]


def ended(service: ServiceClient, state: str) -> list[Any]:
    """Runs that a schedule made and that ended in a state, oldest first."""
    found = service.call("POST", "/flow_runs/filter", {"sort": "EXPECTED_START_TIME_ASC"})
    return [run for run in found if run["auto_scheduled"] and run["state_name"] == state]


def told(service: ServiceClient, word: str) -> list[str]:
    """Reasons in the store's list of failures that contain a word, which is no part of a date: runs are named by it."""
    path = service.root / "failures.jsonl"
    lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    return [reason for line in lines if word in (reason := json.loads(line)["reason"])]


def test_a_schedule_of_a_run_file(service_at_home: ServiceClient, home: Path) -> None:
    """A run file with an interval runs by itself and reuses what it made; runs whose time comes meanwhile are skipped.
    Bug: where the worker had to be started again, the schedules became those of the folder of the first `up`.
    The schedule goes when the file no longer asks for it; one that was made in the UI stays, switched off or not."""
    service = service_at_home
    by_hand = {"schedule": {"interval": 86400}, "active": False, "parameters": {"base": "demo"}}
    service.call("POST", f"{deployment(service)}/schedules", [by_hand])
    file = home / "configs" / "runs" / "often.yaml"
    simulated = yaml.safe_load((home / "configs" / "runs" / "asteroid-b.yaml").read_text())
    plain = yaml.safe_dump({**simulated, "name": "often", **SMALL})
    file.write_text(plain + "schedule: {every_s: 3}\n")
    assert "often is scheduled every 3 s" in service.command("up").stdout
    assert "often" not in service.command("up").stdout, "nothing has changed"
    killed = service.find("flows.service.worker")
    for process in killed:
        process.kill()
    service.until(lambda: set(service.find("flows.service.worker")) - {*killed})
    assert any((one["slug"] or "").startswith("run-file-often") for one in schedules(service)), "it follows this folder"
    runs = service.until(lambda: found if len(found := ended(service, "Completed")) >= 2 else None)
    service.expect_tasks(runs[1]["id"], plan="Cached")
    skipped = service.until(lambda: ended(service, "Skipped"))
    assert "one runs at a time; next: " in skipped[0]["state"]["message"] and service.tasks(skipped[0]["id"]) == {}
    file.write_text(plain + "schedule: {cron: 0 2 * *}\n")
    assert "often cannot be scheduled" in service.command("up").stdout
    assert any((one["slug"] or "").startswith("run-file-often") for one in schedules(service)), "as it was"
    file.write_text(plain)
    assert "removed the schedule of often" in service.command("up").stdout
    slugs = [one["slug"] or "" for one in schedules(service)]
    assert "" in slugs and not any(slug.startswith("run-file-often") for slug in slugs)
    assert [one["active"] for one in schedules(service) if not one["slug"]] == [False]


def test_two_at_once(service: ServiceClient) -> None:
    """Of two runs that are started at the same moment one runs, and the other one reads Skipped with a sentence."""
    runs = [service.start(base="asteroid-b", until="plan", **SMALL) for _ in range(2)]
    service.until(lambda: "Skipped" in [service.flow_run(run)["state_name"] for run in runs])
    for run in runs:
        service.until(lambda run=run: service.flow_run(run)["state_name"] in ("Skipped", "Completed"))
    skipped = [run for run in map(service.flow_run, runs) if run["state_name"] == "Skipped"]
    assert len(skipped) == 1 and "another run was in progress" in skipped[0]["state"]["message"]


def test_a_command_beside_a_run_of_the_same_config(service: ServiceClient) -> None:
    """Of two runs of one config at once, which only commands can start, each stage is run by one of them, and the other
    one waits for it; both end well, and nothing in the store is torn."""
    flow_run = service.start(base="asteroid-b", until="plan", changes=["seed=77"], **SMALL)
    sets = ("--set", "seed=77", *SMALL_SETS)
    done = service.command("run", "configs/runs/asteroid-b.yaml", "--until", "plan", *sets, "--json")
    beside = service.ended(flow_run)
    assert beside["state_name"] == "Completed", beside["state"]["message"]
    runs = [json.loads(done.stdout)["run"]["id"], beside["parameters"]["base"]]
    first, second = (Store(service.root).runs.load(run) for run in runs)
    assert first.outputs["plan"] == second.outputs["plan"]
    for stage in ("prepare", "profile", "plan"):
        assert {run.stage(stage).how for run in (first, second)} == {"ran", "reused"}, stage
    for run in runs:
        service.command("verify", run)


def test_a_time_that_passed_while_the_machine_was_off(service: ServiceClient) -> None:
    """A run that a schedule planned for yesterday is dropped: it says when it was due, and starts no stage."""
    path = deployment(service)
    daily = {"schedule": {"interval": 86400}, "active": True, "parameters": {"base": "asteroid-b", "until": "plan"}}
    made = service.call("POST", f"{path}/schedules", [daily])
    now = datetime.datetime.now(datetime.UTC)
    asked = {"start_time": (now - datetime.timedelta(days=2)).isoformat(), "end_time": now.isoformat(), "min_runs": 1}
    service.call("POST", f"{path}/schedule", asked)

    def dropped() -> list[Any]:
        return [run for run in ended(service, "Skipped") if "min ago" in run["state"]["message"]]

    run = service.until(dropped)[0]
    service.call("DELETE", f"{path}/schedules/{made[0]['id']}")
    service.idle()
    assert "the machine was off" in run["state"]["message"] and service.tasks(run["id"]) == {}


def shorten_pauses(service: ServiceClient, pause_s: float) -> None:
    """Let the retries of a service wait for `pause_s` only, as the page of an automation can do it."""
    for found in service.call("POST", "/automations/filter", {}):
        if found["name"].startswith(f"{OWN}retry"):
            kept = {key: found[key] for key in ("name", "description", "enabled", "trigger", "actions")}
            kept["trigger"]["within"] = pause_s
            service.call("PUT", f"/automations/{found['id']}", kept)


def test_try_again_is_retried_with_a_bound(service: ServiceClient, tmp_path: Path) -> None:
    """A run whose engine does not answer is started again a few times, after pauses, and is then told of."""
    shorten_pauses(service, 10)
    run = service.start(base="demo", until="discover", changes=[UNREACHABLE % f"unix://{tmp_path}/no.sock"])
    service.until(lambda: told(service, "no.sock"))
    found = service.flow_run(run)
    assert (found["state_name"], found["run_count"]) == ("TryAgain", RETRIES + 1)
    assert len(told(service, "no.sock")) == 1, "once, after the last retry"
    states = service.call("GET", f"/flow_run_states/?flow_run_id={run}")
    times = [(one["name"], datetime.datetime.fromisoformat(one["timestamp"])) for one in states]
    times.sort(key=lambda one: one[1])
    pauses_s = [
        (after[1] - before[1]).total_seconds()
        for before, after in itertools.pairwise(times)
        if (before[0], after[0]) == ("TryAgain", "AwaitingRetry")  # on a busy machine Prefect may tell it twice at once
    ]
    assert len(pauses_s) == RETRIES and min(pauses_s) >= 10, "a device needs some time to come back"


def test_refused_is_not_retried(service: ServiceClient) -> None:
    """A run that was refused is told of with its reason and stays as it is."""
    run = service.start(base="demo", changes=["training.rounds=-99999"])
    reason = service.until(lambda: told(service, "-99999"))[0]
    assert reason.startswith("Refused: ") and "rounds" in reason
    found = service.flow_run(run)
    assert (found["state_name"], found["run_count"]) == ("Refused", 1) and found["state_type"] in ENDED
