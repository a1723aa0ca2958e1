"""A client of a running service: its commands, and Prefect's API as the UI calls it."""

import http
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from flows.service_files import ServiceFiles, ServiceRecord, basic_authorization

LIMIT_S, ASK_S, MOST_ASK_S = 300.0, 0.2, 1.0
"""Longest wait, for a machine that does much else; least and most seconds between two looks."""
REST = 9.0
"""How many times as long as a look the pause after it is: a server that is asked all the time keeps a core from what is
waited for."""
OWN_PORTS = (20_000, 32_000)
"""First port, and the one after the last: below those that Linux gives to whoever asks for any."""
SMALL = {"model": "vit-tiny", "data": "digits"}
"""What is prepared, profiled and planned in a third of the run file's time: for tests that are of no model."""
SMALL_SETS = tuple(word for key, value in SMALL.items() for word in ("--set", f"{key}={value}"))
"""The same for a command."""
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


class ServiceClient:
    """The service of the store at `root`."""

    def __init__(self, root: Path, **environment: str) -> None:
        """`environment`: variables of its commands."""
        self.root, self.environment = root, environment
        self.files = ServiceFiles(root)

    @property
    def record(self) -> ServiceRecord:
        """The record of the running service."""
        running = self.files.running()
        assert running is not None, "the service runs"
        return running

    def command(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command of `fleetune` on this store; its exit code is checked."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        done = subprocess.run(
            [sys.executable, "-c", "from flows.cli import main; main()", *words, "--root", str(self.root)],
            env={**kept, **self.environment},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One call of Prefect's API; again while it says 503 (its SQLite file is locked) or starts."""
        request = self.request(method, path, body)
        content = self.until(lambda: _answer(request))[0]
        return json.loads(content) if content else None

    def request(self, method: str, path: str, body: Any = None) -> urllib.request.Request:
        """A request of Prefect's API."""
        request = urllib.request.Request(
            f"{self.record.api}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        if auth_string := self.files.auth_string(self.record):
            request.add_header("Authorization", basic_authorization(auth_string))
        return request

    def start(self, flow: str = "finetune", **parameters: Any) -> str:
        """Start a run of a deployment as its form does; the id of the flow run."""
        deployment = self.call("GET", f"/deployments/name/{flow}/{flow}")["id"]
        return str(self.call("POST", f"/deployments/{deployment}/create_flow_run", {"parameters": parameters})["id"])

    def runs_of_commands(self) -> set[str]:
        """Ids of flow runs that no deployment has started."""
        asked = {"flow_runs": {"deployment_id": {"is_null_": True}}}
        return {run["id"] for run in self.call("POST", "/flow_runs/filter", asked)}

    def set_state(self, flow_run: str, kind: str, name: str) -> None:
        """Change a state as the UI's menu does: Cancel, Retry."""
        self.call("POST", f"/flow_runs/{flow_run}/set_state", {"state": {"type": kind, "name": name}})

    def flow_run(self, flow_run: str) -> Any:
        """A flow run as the API shows it."""
        return self.call("GET", f"/flow_runs/{flow_run}")

    def ended(self, flow_run: str) -> Any:
        """The flow run once it has ended."""
        return self.until(lambda: found if (found := self.flow_run(flow_run))["state_type"] in ENDED else None)

    def until(self, look: Any, shown: Callable[[], str] = lambda: "it did not happen") -> Any:
        """The first result of `look` that is true; fails after LIMIT_S with what is `shown` then."""
        deadline = time.monotonic() + LIMIT_S
        while (began := time.monotonic()) < deadline:
            if found := look():
                return found
            _pause(began)
        raise AssertionError(f"within {LIMIT_S:.0f} s: {shown()}")

    def idle(self) -> None:
        """Wait until no run of a deployment is in progress: a run that is started beside it would read Skipped."""
        live = {"state": {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}, "deployment_id": {"is_null_": False}}
        self.until(lambda: not self.call("POST", "/flow_runs/filter", {"flow_runs": live}))

    def expect_tasks(self, flow_run: str, **states: str) -> None:
        """Wait until stages show these states: the server learns of them by events, later than of the flow run's."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            began = time.monotonic()
            if states.items() <= (shown := self.tasks(flow_run)).items():
                return
            assert began < deadline, f"expected {states}, and the server shows {shown}"
            _pause(began)

    def tasks(self, flow_run: str) -> dict[str, str]:
        """Stage -> name of its newest state, as far as the server has heard of it."""
        found = self.call("POST", "/task_runs/filter", {"flow_runs": {"id": {"any_": [flow_run]}}})
        return {task["name"]: task["state_name"] for task in sorted(found, key=lambda task: str(task["created"]))}

    def logs(self, flow_run: str) -> str:
        """The log of a flow run."""
        asked = {"logs": {"flow_run_id": {"any_": [flow_run]}}, "sort": "TIMESTAMP_ASC"}
        return "\n".join(line["message"] for line in self.call("POST", "/logs/filter", asked))

    def logged(self, flow_run: str, text: str) -> str:
        """The first line of a log that holds `text`, once it has arrived: logs are sent in batches."""

        def found() -> str:
            return next((line for line in self.logs(flow_run).splitlines() if text in line), "")

        return str(self.until(found, lambda: f"no line with {text!r} in the log:\n{self.logs(flow_run)}"))

    def find(self, name: str) -> list[psutil.Process]:
        """Processes of the service whose command line holds `name`."""
        keeper = psutil.Process(self.record.keeper)
        return [process for process in keeper.children(recursive=True) if name in command_of(process)]

    @staticmethod
    def free_port() -> int:
        """A port that is free now, and that no program gets that leaves the choice to the kernel."""
        while True:
            port = random.SystemRandom().randrange(*OWN_PORTS)
            with suppress(OSError), socket.create_server(("127.0.0.1", port)):
                return port


def command_of(process: psutil.Process) -> str:
    """Command line of a process; empty once it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _pause(began_s: float) -> None:
    """Wait after a look that began at this time."""
    time.sleep(min(max(ASK_S, REST * (time.monotonic() - began_s)), MOST_ASK_S))


def _answer(request: urllib.request.Request) -> list[bytes]:
    """The content of the answer; nothing where the server is busy, or starts again and has not heard the request."""
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return [answer.read()]
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        error.close()
        return []
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ConnectionRefusedError):
            raise
        return []
