"""The next command that the state of a run names, copied and entered."""

import shlex
import subprocess
import sys

from tests.support.flows.service.client import ServiceClient


def enter(service: ServiceClient, flow_run: str, change: str = "") -> subprocess.CompletedProcess[str]:
    """Wait for the next command in the message of a flow run's state, and enter it with what it asks for."""

    def copied() -> str:
        message = str(service.flow_run(flow_run)["state"]["message"] or "")
        return message.partition("; next: ")[2]

    words = [word.replace("KEY=VALUE", change or word) for word in shlex.split(service.until(copied))]
    assert words[-2:] == ["--root", str(service.root.resolve())]
    words[0] = f"{sys.prefix}/bin/fleetune"
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_the_next_command_of_a_cancelled_and_of_a_skipped_run(service: ServiceClient) -> None:
    """Of two runs at once one is soon Skipped, while the other one still runs, and lists the one in its way; the other
    one, cancelled, is told how to go on, and goes on."""
    runs = [service.start(base="asteroid-b", until="plan", model="mobilenet-v2") for _ in range(2)]
    service.until(lambda: "Skipped" in [service.flow_run(run)["state_name"] for run in runs])
    skipped, running = sorted(runs, key=lambda run: service.flow_run(run)["state_name"] != "Skipped")
    assert service.flow_run(running)["end_time"] is None
    listed = enter(service, skipped)
    assert listed.returncode == 0, listed.stderr
    service.logged(running, "started")
    service.set_state(running, "CANCELLING", "Cancelling")
    service.ended(running)
    went_on = enter(service, running)
    assert went_on.returncode == 0, went_on.stderr
    assert service.flow_run(running)["state_name"] == "Cancelled"


def test_the_next_command_of_a_refused_run(service: ServiceClient) -> None:
    """A dry run with what corrects it; of a completed run, what it made."""
    refused = service.start(base="asteroid-b", until="plan", changes=["training.rounds=-99998"])
    assert service.ended(refused)["state_name"] == "Refused"
    again = enter(service, refused, "training.rounds=-99997")
    assert again.returncode == 64 and "-99997" in again.stderr
