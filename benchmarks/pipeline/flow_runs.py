"""Flow runs of a service: what they take besides their stages, as the server's own clock says."""

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

from benchmarks.pipeline.commands import COMMAND
from benchmarks.report import Figure, median_and_spread
from fleetune.contracts.record import record
from fleetune.store import RunRecord, Store
from flows.service_files import ServiceFiles, basic_authorization

OVERHEAD_S, REUSED_S, REFUSED_S = 1.0, 5.0, 3.0
RUN = {"base": "asteroid-b", "model": "vit-tiny", "data": "digits", "until": "plan"}
"""Simulated devices and a small model: the stages take seconds."""
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
LIMIT_S, ASK_S, BUSY_TIMES = 300.0, 0.1, 100
ANSWER_S, LATE_TIMES = 10.0, 6
"""Longest wait for an answer, and how many may be late in succession; a request that writes is waited for as long as
all of them, and sent once."""


@record
class TimedRun:
    """One flow run that has ended; times in seconds."""

    state: str
    run: str
    """Its run in the store; for a refused one what was given as its base."""
    from_submit_s: float
    """From the submission to the end."""
    from_process_s: float
    """From the start of its process to the end, imports included."""
    from_flow_s: float
    """From the first line of the flow to the end."""


class Service:
    """A service of an empty store, started and stopped by the commands that people use."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __enter__(self) -> "Service":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        self._command("up", "--port", str(port))
        return self

    def __exit__(self, *_: object) -> None:
        self._command("down")

    def _command(self, *words: str) -> None:
        subprocess.run([*COMMAND, *words, "--root", str(self.root)], check=True, stdout=subprocess.DEVNULL)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One call of Prefect's API, made as often as `answer` does."""
        files = ServiceFiles(self.root)
        running = files.running()
        assert running is not None, "the service runs"
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{running.api}{path}", method=method, data=content)
        request.add_header("Content-Type", "application/json")
        if auth_string := files.auth_string(running):
            request.add_header("Authorization", basic_authorization(auth_string))
        return json.loads(answer(request))

    def run(self, **parameters: Any) -> TimedRun:
        """Submit a run as the form does and wait for its end; TimeoutError after LIMIT_S."""
        deployment = self.call("GET", "/deployments/name/finetune/finetune")["id"]
        begun = self.call("POST", f"/deployments/{deployment}/create_flow_run", {"parameters": parameters})
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            ended = self.call("GET", f"/flow_runs/{begun['id']}")
            if ended["state_type"] in ENDED:
                return self._timed(ended)
            time.sleep(ASK_S)
        raise TimeoutError(f"flow run {begun['id']} has not ended within {LIMIT_S:.0f} s")

    def _timed(self, flow_run: Any) -> TimedRun:
        states = self.call("GET", f"/flow_run_states/?flow_run_id={flow_run['id']}")
        starts = [state["timestamp"] for state in states if state["type"] == "PENDING"]
        end = flow_run["end_time"]
        return TimedRun(
            state=flow_run["state_name"],
            run=flow_run["parameters"]["base"],
            from_submit_s=seconds_between(flow_run["created"], end),
            from_process_s=seconds_between(min(starts), end),
            from_flow_s=seconds_between(flow_run["start_time"], end),
        )


def answer(request: urllib.request.Request, answer_s: float = ANSWER_S) -> bytes:
    """What a server answers. It is asked again while it says 503 (its SQLite file is locked), and again for what it
    only reads when an answer is later than `answer_s` seconds.

    RuntimeError where it does so too often.
    """
    reads, late, busy = request.get_method() == "GET", 0, 0
    while late < LATE_TIMES and busy < BUSY_TIMES:
        try:
            with urllib.request.urlopen(request, timeout=answer_s * (1 if reads else LATE_TIMES)) as answered:
                return bytes(answered.read())
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            error.close()
            busy += 1
            time.sleep(ASK_S)
        except OSError as error:
            if not reads or not isinstance(getattr(error, "reason", error), TimeoutError):
                raise
            late += 1
    what = f"was busy {busy} times in succession" if not late else f"did not answer {late} times, {answer_s:g} s each"
    raise RuntimeError(f"Prefect's server {what} ({request.full_url}); run it on an idle machine")


def seconds_between(begin: str, end: str) -> float:
    """Seconds from one ISO 8601 time to another."""
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


def stages_work_s(run: RunRecord) -> float:
    """Seconds in which at least one stage of a run was at work, from the decision to run it to its stored outputs."""
    spans = sorted((s.started, s.ended) for s in run.stages if s.how == "ran" and s.started and s.ended)
    total_s, reached = 0.0, ""
    for begin, end in spans:
        if not reached or datetime.fromisoformat(begin) > datetime.fromisoformat(reached):
            reached = begin
        if datetime.fromisoformat(end) > datetime.fromisoformat(reached):
            total_s += seconds_between(reached, end)
            reached = end
    return total_s


def flow_run_figures(root: Path, repeats: int, report_progress: Callable[[str], None]) -> list[Figure]:
    """Overhead of stages, a reused run and a refused one, with a service that is started for them."""
    report_progress("starting a service")
    with Service(root) as service:
        store = Store(str(root))
        report_progress("the stages up to plan, twice")
        overheads_s, reused, from_process_s, from_submit_s = [], [], [], []
        for place in range(repeats):
            ran = expect(service.run(**RUN, changes=[f"seed={place + 1}"]), "Completed")
            said = store.runs.load(ran.run)
            done = [stage for stage in said.stages if stage.state == "done"]
            overheads_s.append((ran.from_flow_s - stages_work_s(said)) / len(done))
            again = expect(service.run(**RUN, changes=[f"seed={place + 1}"]), "Completed")
            reused.append(again.from_flow_s - stages_work_s(store.runs.load(again.run)))
        report_progress("a run that is refused")
        for _ in range(max(repeats, 2)):
            refused = expect(service.run(**RUN, changes=["training.rouns=3"]), "Refused")
            from_process_s.append(refused.from_process_s)
            from_submit_s.append(refused.from_submit_s)
        report_progress("stopping the service")
    return [
        seconds("overhead_of_a_stage", overheads_s, OVERHEAD_S, "flow run without its stages' work, by their number"),
        seconds("reused_run", reused, REUSED_S, "every stage reused; without probing and the worker's start"),
        seconds("refusal_from_process", from_process_s, REFUSED_S, "from the start of the process to state Refused"),
        seconds("refusal_from_submit", from_submit_s, REFUSED_S, "from the submission to state Refused"),
    ]


def seconds(name: str, times_s: list[float], target_s: float, about: str) -> Figure:
    """A figure of several times."""
    return Figure(name=name, **median_and_spread(times_s), unit="s", target=target_s, better="lower", about=about)


def expect(run: TimedRun, state: str) -> TimedRun:
    """The run, if it ended in `state`; RuntimeError otherwise."""
    if run.state != state:
        raise RuntimeError(f"a run ended in state {run.state}, not {state}; nothing was measured")
    return run
