"""Runs that somebody told to end, by `fleetune down` or Ctrl-C: their state says so, and how to go on."""

import os
import signal
import subprocess
import sys

from tests.support.flows.service.client import ServiceClient


def test_down_names_the_end_of_its_runs(service: ServiceClient) -> None:
    """Bug: a run that `down` had stopped read Crashed, aborted by a termination signal. It reads Cancelled, with the
    next commands, `down` counts it, and Retry goes on from the stages that had ended.
    """
    port = service.record.address.rpartition(":")[2]
    run = service.start(base="demo", until="profile", changes=["seed=78"])  # stages that no other test has left
    service.expect_tasks(run, prepare="Running")
    told = service.command("down").stdout
    assert "a run was stopped" in told and "fleetune up" in told and "Retry" in told
    assert service.files.going_down.exists()
    service.command("up", "--port", port)
    assert not service.files.going_down.exists(), "it would name a kill of tomorrow"
    ended = service.flow_run(run)
    assert ended["state_name"] == "Cancelled", ended["state"]
    message, base = ended["state"]["message"], ended["parameters"]["base"]
    assert message.startswith("stopped by fleetune down; Retry in the UI goes on") and f"rerun {base}" in message
    service.set_state(run, "SCHEDULED", "AwaitingRetry")
    service.until(lambda: service.flow_run(run)["state_type"] == "RUNNING")
    service.set_state(run, "CANCELLING", "Cancelling")
    assert service.ended(run)["state"]["message"] != message


def test_ctrl_c_names_the_end_of_its_run(service: ServiceClient) -> None:
    """A command's run that Ctrl-C has ended reads Cancelled, with the command that goes on; the command exits with 130,
    and so it does after SIGTERM.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        before = service.runs_of_commands()
        # forced: where an earlier test has left these stages, the run would end before it is stopped
        words = ["run", "configs/runs/demo.yaml", "--until", "profile", "--force", "--root", str(service.root)]
        command = subprocess.Popen(
            [sys.executable, "-c", "from flows.cli import main; main()", *words],
            env={name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        (run,) = service.until(lambda known=before: service.runs_of_commands() - known)
        service.until(lambda flow_run=run: service.tasks(flow_run))
        command.send_signal(number)
        said = command.communicate()[1]
        assert command.returncode == 130, said
        ended = service.ended(run)
        assert ended["state_name"] == "Cancelled", ended["state"]
        message, base = ended["state"]["message"], ended["parameters"]["base"]
        assert message.startswith("stopped by Ctrl-C; next: ") and f" rerun {base} " in message
