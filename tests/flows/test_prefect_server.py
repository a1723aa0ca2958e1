"""The embedded Prefect server, and a run on it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fleetune.errors import TryAgain
from flows import prefect_server
from tests.support.flows.toy_pipeline import World, toy_context

PROGRAM = """
import base64, http.client, json, os, sys
from pathlib import Path
from urllib.parse import urlsplit
from flows import prefect_server

prefect_server.ensure(Path("home"))
secret = os.environ["PREFECT_API_AUTH_STRING"]

def status(headers, method="POST", path="/api/flows/filter"):
    line = http.client.HTTPConnection(urlsplit(os.environ["PREFECT_API_URL"]).netloc, timeout=60)
    line.request(method, path, "{}", {"Content-Type": "application/json", **headers})
    found = line.getresponse().status
    line.close()
    return found

def basic(text):
    return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}

from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    runs = len(client.read_flow_runs())
from fleetune.launching import Command, ProcessLauncher
child = ProcessLauncher().start(Command(module="tests.support.flows.print_environment", log=Path("log")))
names = next(child.lines())
asked = [status({}), status(basic("a:b")), status({}, "GET", "/openapi.json"), status(basic(secret))]
print(json.dumps([*asked, runs, names, secret]), flush=True)
sys.stdin.readline()
"""


def is_server(process: psutil.Process) -> bool:
    """True when a process is the server; a process that has just ended has no command line."""
    try:
        return "flows.embedded_server" in process.cmdline()
    except psutil.Error:
        return False


def test_the_server_answers_nobody_else(tmp_path: Path) -> None:
    """Bug: another user could take the port or call the server; the server answers only clients with its secret, which
    stands in no argument, environment or log. Bug: others learned which calls there are."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=kept,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        unknown, wrong, calls, known, runs, names, secret = json.loads(process.stdout.readline())
        assert (unknown, wrong, calls, known, runs) == (401, 401, 401, 200, 0)
        assert "PREFECT_API_AUTH_STRING" not in names.split() and "PREFECT_HOME" in names.split()
        children = psutil.Process(process.pid).children()  # the other one may still be ending
        (child,) = (each for each in children if is_server(each))
        assert all(secret not in text for text in (*child.cmdline(), *child.environ().values()))
        assert all(each.laddr.ip == "127.0.0.1" for each in child.net_connections() if each.status == "LISTEN")
        process.stdin.write("\n")
    assert not any(secret.encode() in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


def test_a_server_that_ends_before_it_has_a_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error holds the last line of the server's log, without waiting."""
    monkeypatch.setattr(prefect_server, "SERVER_ONLY", {"PYTHONWARNINGS": "error", "PYTHONPATH": str(tmp_path)})
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "__init__.py").touch()
    (tmp_path / "flows" / "embedded_server.py").write_text("raise SystemExit('no room here')")
    with pytest.raises(TryAgain, match="Prefect's server did not start \\(no room here\\)"):
        prefect_server.start(tmp_path, lambda _: False)


END_S = 600


def command(world: World, root: Path) -> list[str]:
    """Command of a run through Prefect, with warnings as errors."""
    return [sys.executable, "-W", "error", "-m", "tests.support.flows.through_prefect", str(world.folder), str(root)]


def test_the_flow_on_the_embedded_server(world: World, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed flow takes server and stage along; the next run ends, with reused stages Cached and errors in one
    sentence."""
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    world.set("stop-shape", "")
    with subprocess.Popen(command(world, root), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as flow:
        stage = psutil.Process(int((world.folder / "here").read_text()))
        children = psutil.Process(flow.pid).children(recursive=True)
        flow.kill()
        flow.wait()
    assert len(children) >= 2 and stage in children, "the server and the stage"
    assert not psutil.wait_procs(children, timeout=END_S)[1]
    world.clear("stop-shape")
    world.started()

    done = subprocess.run(command(world, root), capture_output=True, text=True, timeout=END_S, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    stages = ("measure", "shape", "learn", "watch", "score")
    assert report["first"] == dict.fromkeys(stages, "Completed")
    assert report["second"] == {**report["first"], "shape": "Cached", "learn": "Cached", "score": "Cached"}
    assert report["error"] == [65, "score cannot go on, as the world has it"]
    assert report["flow states"].count("Completed") == 2 and report["flow states"].count("Infeasible") == 1
    assert done.stderr == "", "nothing but what listeners hear"
    assert [run.state for run in toy_context(root).store.runs.all()] == ["refused", "done", "done", "interrupted"]
