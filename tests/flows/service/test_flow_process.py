"""How long a flow run is waited for that was told to end, or is frozen."""

import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from fleetune.launching.child import FORK_SERVER
from fleetune.launching.life_watch import Silence
from flows.prefect_server import API_URL
from flows.service import flow_process
from flows.service.worker import end_silent_runs
from tests.support.flows.service.client import ServiceClient
from tests.support.launching.freezing import watch_of

RUN = """
import signal, subprocess, sys
if len(sys.argv) > 1:
    subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", sys.argv[1]])
print("up", flush=True)
signal.pause()
"""


@contextmanager
def a_run(*child: str) -> Iterator[psutil.Process]:
    """A process with one child, which is called so."""
    with subprocess.Popen([sys.executable, "-c", RUN, *child], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        run = psutil.Process(process.pid)
        family = [run, *run.children()]
        try:
            yield run
        finally:
            for each in family:
                each.kill()


WORKER = """
import os, subprocess, sys
from fleetune.launching.process import child_command
waits = subprocess.Popen([*child_command(0), "timeit", "-s", "import signal; signal.pause()"])
frozen = subprocess.Popen([*child_command(0), "tests.support.launching.freezing"])
print(frozen.pid, flush=True)
print(*os.waitpid(-1, 0), flush=True)
waits.kill()
"""


def test_a_flow_run_that_freezes_is_killed_by_its_worker() -> None:
    """Bug: Prefect's worker waited for it for ever, and every later run of its deployment was Skipped. One that waits
    for something lives."""
    silence = Silence(watch_of(1.0, 1.5).limit)
    with subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        frozen = worker.stdout.readline().strip()
        while not select.select([worker.stdout], [], [], 0.1)[0]:
            end_silent_runs(worker.pid, silence)
        assert worker.stdout.readline().split() == [frozen, str(signal.SIGKILL.value)]


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """The port of a server that is gone; whoever is alone is given up at once."""
    port = ServiceClient.free_port()
    monkeypatch.setenv(API_URL, f"http://127.0.0.1:{port}/api")
    monkeypatch.setattr(flow_process, "ALONE_S", 1e-9)
    return port


def test_the_server_that_forks_stages_is_no_stage(port: int) -> None:
    """Bug: after a shutdown runs lived on for 28 s, since that server lasts as long as they. A stage, which writes a
    checkpoint, is waited for.
    """
    with a_run("stages.train") as training, a_run(FORK_SERVER) as idle, a_run() as bare:
        assert flow_process.Patience().lasts([idle, training])
        assert not flow_process.Patience().lasts([idle, bare])


def test_a_server_that_is_too_busy_to_answer_is_waited_for(port: int) -> None:
    """Else a run that `down` has stopped could not report it on a busy machine, and would read Crashed."""
    with socket.create_server(("127.0.0.1", port), backlog=1), a_run() as bare:
        assert flow_process.Patience().lasts([bare])
