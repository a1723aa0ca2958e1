"""What the keeper says of flow runs that Prefect has cancelled."""

import http.client
import shlex
import shutil
from typing import Any

import pytest

from flows.service.ended_runs import LIMIT_REACHED, LOOK_S, EndMessages

STORE = "/srv/runs"


class Server:
    """A stand-in for the server: its cancelled runs, and the states that were set."""

    def __init__(self, *runs: dict[str, Any]) -> None:
        self.runs = {run["id"]: run for run in runs}
        self.states = {run["id"]: [run["state"]] for run in runs}
        self.asked = 0
        self.retried = False
        self.retried_beside = ""
        self.away = False

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Answer as Prefect's API does."""
        if self.away:
            raise http.client.HTTPException("503")
        if path == "/flow_runs/filter":
            self.asked += 1
            wanted = body["flow_runs"]["state"]["name"]["any_"]
            return [dict(run) for run in self.runs.values() if run["state"]["name"] in wanted]
        if method == "GET" and path.startswith("/flow_runs/"):
            run = self.runs[path.rpartition("/")[2]]
            return {**run, "state": {"name": "AwaitingRetry"}} if self.retried else run
        if path.startswith("/flows/"):
            return {"name": path.rpartition("/")[2]}
        if path.startswith("/flow_run_states/?flow_run_id="):
            return self.states[path.rpartition("=")[2]][::-1]
        assert (method, body["force"]) == ("POST", True) and path.endswith("/set_state")
        identity, beside, self.retried_beside = path.split("/")[2], self.retried_beside, ""
        if beside == "before":
            self.set(identity, RETRY)
        self.set(identity, body["state"])
        answer = {"status": "ACCEPT", "state": self.runs[identity]["state"]}
        if beside == "after":
            self.set(identity, RETRY)
        return answer

    def set(self, identity: str, state: dict[str, Any]) -> None:
        """Give a run a state."""
        states = self.states[identity]
        states.append({**state, "id": str(len(states)), "timestamp": f"2026-01-02T00:00:{len(states):02}Z"})
        self.runs[identity]["state"] = states[-1]


RETRY = {"type": "SCHEDULED", "name": "AwaitingRetry", "message": None, "state_details": {"scheduled_time": "now"}}


def run(identity: str, message: str | None, flow: str = "finetune", **parameters: Any) -> dict[str, Any]:
    """A cancelled flow run as the API shows it."""
    state = {"type": "CANCELLED", "name": "Cancelled", "message": message}
    state |= {"id": "0", "timestamp": "2026-01-02T00:00:00Z"}
    return {"id": identity, "flow_id": flow, "parameters": parameters, "state": state}


@pytest.fixture(autouse=True)
def _by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")


def complete(server: Server, seconds: float = LOOK_S) -> None:
    """One look of a keeper at the server."""
    times = iter([0.0, seconds, seconds, seconds])
    api: Any = server
    EndMessages(api, STORE, lambda: next(times)).complete()


def test_a_run_that_another_one_kept_from_starting_reads_skipped() -> None:
    """Bug: a scheduled run read Cancelled until the run ended that was in its way, hours later. The keeper asks the
    server itself, and does not wait for an event or for another run's end."""
    server = Server(run("a", LIMIT_REACHED, base="nightly"))
    complete(server)
    state = server.runs["a"]["state"]
    assert (state["name"], state["type"]) == ("Skipped", "CANCELLED")
    assert state["message"] == (
        "another run was in progress, and one runs at a time; next: fleetune runs --state running --root /srv/runs"
    )


@pytest.mark.parametrize(
    ("flow", "parameters", "words"),
    [
        ("finetune", {"base": "demo-1", "until": "plan"}, ["rerun", "demo-1", "--until", "plan"]),
        ("finetune", {"base": "demo"}, ["run", "configs/runs/demo.yaml"]),
        ("profile-fleet", {"base": "demo-1"}, ["rerun", "demo-1", "--until", "profile"]),
        ("compare", {"base": "demo-1", "strategies": ["dp"]}, ["compare", "demo-1", "--strategies", "dp"]),
        ("evaluate", {"run": "demo-1"}, ["evaluate", "demo-1"]),
    ],
)
def test_a_cancelled_run_says_how_it_goes_on(flow: str, parameters: dict[str, Any], words: list[str]) -> None:
    """Prefect's sentence stays, and the command of the run's own flow follows; a second look changes nothing."""
    server = Server(run("a", "Flow run was cancelled successfully.", flow, **parameters))
    complete(server)
    state = server.runs["a"]["state"]
    said, _, copied = state["message"].partition("; next: ")
    assert (state["name"], said) == ("Cancelled", "Flow run was cancelled successfully")
    assert shlex.split(copied) == ["fleetune", *words, "--root", STORE]
    before = dict(state)
    complete(server)
    assert server.runs["a"]["state"] == before


def test_a_run_that_somebody_starts_again_stays_started() -> None:
    """Between the keeper's look and its answer somebody pressed Retry: the run keeps the state that they gave it."""
    server = Server(run("a", "Flow run was cancelled successfully.", base="demo-1"))
    server.retried = True
    complete(server)
    assert server.runs["a"]["state"]["message"] == "Flow run was cancelled successfully."


@pytest.mark.parametrize("beside", ["before", "after"])
def test_a_run_that_is_started_again_beside_its_message_is_started(beside: str) -> None:
    """Bug: Retry between the keeper's look and its message was overwritten, and the run stayed Cancelled for ever."""
    server = Server(run("a", "stopped by ann", base="demo-1"))
    server.retried_beside = beside
    complete(server)
    state = server.runs["a"]["state"]
    assert {key: state[key] for key in RETRY} == RETRY


def test_one_odd_run_or_a_busy_server_stops_nothing() -> None:
    """A server that does not answer, and a run with parameters of another release, are no error of the keeper."""
    server = Server(run("a", None, changes=7), run("b", None, base="demo-1"))
    complete(server)
    assert server.runs["a"]["state"]["message"] is None
    assert server.runs["b"]["state"]["message"] == "cancelled; next: fleetune rerun demo-1 --root /srv/runs"
    server.away = True
    complete(server)


def test_the_server_is_not_asked_at_every_tick() -> None:
    """Looks within LOOK_S cost the server nothing."""
    server = Server()
    complete(server, seconds=LOOK_S)
    assert server.asked == 1
    times = iter([0.0, LOOK_S, LOOK_S, LOOK_S + 0.5])
    api: Any = server
    messages = EndMessages(api, STORE, lambda: next(times))
    messages.complete()
    messages.complete()
    assert server.asked == 2
