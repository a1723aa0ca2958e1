"""`fleetune up` and `down`: what they start, what they refuse, and what is true after a crash."""

import json
import os
import signal
import socket
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fleetune.store import Store
from flows.prefect_server import answers
from tests.support.flows.service.client import SMALL, SMALL_SETS, ServiceClient


def family(service: ServiceClient) -> list[psutil.Process]:
    """The processes of the service."""
    keeper = psutil.Process(service.record.keeper)
    return [keeper, *keeper.children(recursive=True)]


def command_line(process: psutil.Process) -> str:
    """The command line of a process; empty where it has ended."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def lasting(service: ServiceClient) -> set[int]:
    """Ids of the processes that last as long as the service: keeper, server, worker; not of what those start."""
    keeper = psutil.Process(service.record.keeper)
    words = ("keeper", "http_server", "flows.service.worker")
    return {p.pid for p in (keeper, *keeper.children()) if any(word in command_line(p) for word in words)}


def listening(process: psutil.Process) -> list[str]:
    """Addresses that a process listens on; none where it has ended."""
    with suppress(psutil.Error):
        return [c.laddr.ip for c in process.net_connections() if c.status == "LISTEN"]
    return []


def test_a_second_up_starts_nothing(service: ServiceClient) -> None:
    """`up` on a running service tells its addresses and leaves its processes alone."""
    before = lasting(service)
    told = json.loads(service.command("up", "--json").stdout)
    assert told["address"] == service.record.address and told["root"] == str(service.root.resolve())
    assert len(before) == 3 and before == lasting(service)


def test_deployments_name_the_run_files(service: ServiceClient) -> None:
    """Bug: nothing in the UI told which names the field `base` takes. The page of each deployment that has it does."""
    told = {one["name"]: one["description"] for one in service.call("POST", "/deployments/filter", {})}
    assert all("demo, " in told[name] and "nightly" in told[name] for name in ("finetune", "compare", "profile-fleet"))
    assert "nightly" not in told["evaluate"]


def test_the_server_comes_back_on_its_port(service: ServiceClient) -> None:
    """A killed server is started again, and meanwhile nobody else can bind its port."""
    server = next(p for p in family(service) if "flows.service.http_server" in command_line(p))
    port = int(service.record.address.rpartition(":")[2])
    server.kill()
    server.wait()
    with pytest.raises(OSError), socket.create_server(("127.0.0.1", port)):
        pass
    service.until(lambda: answers(port) and any("http_server" in command_line(p) for p in family(service)))
    assert service.ended(service.start(base="asteroid-b", until="plan", **SMALL))["state_name"] == "Completed"


def test_everything_listens_on_loopback(service: ServiceClient) -> None:
    """No process of the service listens anywhere but on loopback."""
    addresses = [address for process in family(service) for address in listening(process)]
    assert addresses and set(addresses) == {"127.0.0.1"}


def test_a_taken_port_is_refused(tmp_path: Path) -> None:
    """A port that another program has is refused by number, and nothing is left running."""
    other = ServiceClient(tmp_path / "runs")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        done = other.command("up", "--port", str(port), code=64)
    assert str(port) in done.stderr and "--port" in done.stderr
    assert not other.files.starting() and other.command("down", code=64)


def test_a_run_that_cannot_be_is_refused(service: ServiceClient) -> None:
    """A misspelled setting ends the run in a state Refused with our sentence, without a traceback, before any stage."""
    run = service.start(base="demo", changes=["training.rouns=3"])
    ended = service.ended(run)
    assert ended["state_name"] == "Refused" and "rounds" in ended["state"]["message"]
    service.expect_tasks(run, configure="Refused")
    assert len(service.tasks(run)) == 1 and "Traceback" not in service.logs(run)
    with pytest.raises(urllib.error.HTTPError) as refused:
        service.start(base="demo", strategy="astroid")
    with refused.value as answer:
        assert b"asteroid" in answer.read()


def test_a_run_is_named_and_is_its_own_base(service: ServiceClient) -> None:
    """A run gets a title that says what it is, and a copy of it would read its own config."""
    run = service.start(base="asteroid-b", until="plan", rounds=3, **SMALL)
    ended = service.ended(run)
    assert ended["state_name"] == "Completed", ended["state"]["message"]
    assert ended["name"] == "asteroid-b · pp · 3 rounds"
    assert (service.root / "runs" / ended["parameters"]["base"] / "run.json").is_file()
    again = service.start(base=ended["parameters"]["base"], until="plan")
    assert service.ended(again)["name"] == "asteroid-b · pp · 3 rounds", "not the run file's rounds"
    service.expect_tasks(again, plan="Cached")


def test_runs_of_the_command_line_are_shown(service: ServiceClient) -> None:
    """A run that was started by a command while the service runs is in the same UI."""
    before = service.runs_of_commands()
    service.command("run", "configs/runs/asteroid-b.yaml", "--until", "plan", *SMALL_SETS)
    (shown,) = service.runs_of_commands() - before
    assert service.flow_run(shown)["name"].startswith("asteroid-b · ")


def test_the_stores_pages(service: ServiceClient) -> None:
    """Files that a manifest names are shown over HTTP; a file beside them, and another host's name, are not."""
    service.ended(service.start(base="asteroid-b", until="plan", **SMALL))
    base = f"{service.record.address}{service.files.pages_path(True)}"
    plan = next((service.root / "artifacts" / "plan").glob("*/plan.json")).parent
    page = f"{base}/artifacts/plan/{plan.name}/plan.json"
    with urllib.request.urlopen(page) as answer:
        assert answer.read() == (plan / "plan.json").read_bytes()
        assert "sandbox" in answer.headers["Content-Security-Policy"]
    for wrong in (f"{base}/artifacts/plan/{plan.name}/..%2f..%2f..%2frun.json", f"{base}/runs/nothing"):
        with pytest.raises(urllib.error.HTTPError) as missing:
            urllib.request.urlopen(wrong)
        with missing.value as answer:
            assert answer.code == 404
    with pytest.raises(urllib.error.HTTPError) as strange:
        urllib.request.urlopen(urllib.request.Request(page, headers={"Host": "evil.example"}))
    with strange.value as answer:
        assert answer.code == 403


def test_the_truth_after_a_crash(service: ServiceClient) -> None:
    """The keeper is killed in the middle of a run: nothing of it survives, and after `up` the run says Crashed. So it
    is where a lost power has emptied the files that were written last, and its process id is another program's.
    """
    port = service.record.address.rpartition(":")[2]
    run = service.start(base="demo", until="profile")
    service.until(lambda: service.tasks(run))
    processes = family(service)
    os.kill(service.record.keeper, signal.SIGKILL)
    assert not psutil.wait_procs(processes, timeout=120)[1], "they end with their keeper"
    assert service.files.running() is None
    left = json.loads(service.files.record.read_bytes())
    service.files.record.write_text(json.dumps({**left, "keeper": os.getpid()}))
    for path in (service.files.home / "concurrency_leases").glob("*.json"):
        path.write_bytes(b"")
    service.command("up", "--port", port)
    assert service.flow_run(run)["state_name"] == "Crashed"
    assert service.ended(service.start(base="asteroid-b", until="plan", **SMALL))["state_name"] == "Completed"


def test_up_ends_runs_without_a_process(service: ServiceClient) -> None:
    """Of runs that say Running, `up` ends those whose process is gone; a run that holds its lock in the store, and one
    that the worker is just starting, go on."""
    flow = service.call("POST", "/flows/", {"name": "finetune"})["id"]

    def says(kind: str, base: str) -> str:
        asked = {"flow_id": flow, "parameters": {"base": base}, "state": {"type": kind}}
        return str(service.call("POST", "/flow_runs/", asked)["id"])

    dead, live, starting = says("RUNNING", "demo-1"), says("RUNNING", "demo-2"), says("PENDING", "demo")
    with Store(service.root).runs.alive("demo-2"):
        service.command("up")
        states = [service.flow_run(run)["state_type"] for run in (dead, live, starting)]
    assert states == ["CRASHED", "RUNNING", "PENDING"]
    assert "; next: " in (message := service.flow_run(dead)["state"]["message"]) and "fleetune rerun demo-1" in message
    service.command("up")
    assert service.flow_run(live)["state_type"] == "CRASHED", "its lock is free now"
    service.set_state(starting, "CANCELLED", "Cancelled")


def test_a_password_and_the_end(tmp_path: Path) -> None:
    """The API answers nobody without the password, and neither do the store's pages. `down` ends every process
    of its service, and refuses when there is none."""
    other = ServiceClient(tmp_path / "runs")
    told = json.loads(other.command("up", "--port", str(other.free_port()), "--json").stdout)
    assert other.call("POST", "/flows/filter", {}), "the deployments' flows"
    for url in (f"{other.record.api}/flows/count", f"{other.record.address}/store/key/"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(url, method="POST" if "count" in url else "GET"))
        with refused.value as answer:
            assert answer.code in (401, 404)
    with urllib.request.urlopen(told["store"]) as answer:
        assert b"Log in to" in answer.read()
    with urllib.request.urlopen(f"{told['address']}{other.files.pages_path(True)}/") as answer:
        assert b"No runs yet" in answer.read()
    private = (other.files.home, other.files.folder / "secret", other.files.folder / "lock")
    assert [path.stat().st_mode & 0o077 for path in private] == [0, 0, 0], "a lock that others can open they can hold"
    processes = family(other)
    other.command("down")
    assert not psutil.wait_procs(processes, timeout=60)[1]
    assert "fleetune up" in other.command("down", code=64).stderr
