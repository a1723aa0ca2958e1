"""`fleetune chaos`: the report, the document, the exit codes, and what is refused."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.chaos.comparison import Check
from flows.chaos.rehearsal import ChaosReport, ChaosRequest, FaultRow
from flows.chaos.throughput import Throughput
from flows.cli.work import Work
from tests.support.cli.calls import Call, document, working
from tests.support.cli.documentation import COMMANDS, REPOSITORY

DEMO = Path(__file__).parents[2] / "configs" / "runs" / "demo.yaml"
REHEARSALS = [command for command in COMMANDS if command.startswith("chaos")]
REPORT = ChaosReport(
    run="demo-1",
    seed=3,
    rounds=50,
    faults=(
        FaultRow(
            number=0, device="desk", kind="kill", asked="forward, round 4", happened="forward, round 4", lost_s=1.234
        ),
        FaultRow(number=1, device="nano", kind="cut", asked="backward, round 9", happened=""),
    ),
    checks=(
        Check(name="weights are equal", ok=True, found="bit for bit"),
        Check(name="all faults happened", ok=True, found="2 of 2"),
    ),
    starts=2,
    whole_s=10.0,
    met_s=20.4,
    throughput=Throughput(
        ratio=0.91, ratio_of_devices=0.982, lost_s=2.0, lost_s_per_fault=0.25, pace=1.017, ratio_at_pace=0.993
    ),
    folder="",
)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What a rehearsal that trains nothing was asked for; its report is the last element, to be changed."""
    asked: list[Any] = [REPORT]

    class Rehearsed(Work):
        def rehearse(self, context: Any, config: Any, request: ChaosRequest) -> ChaosReport:
            asked.insert(0, (config.name, config.training.rounds, request))
            report: ChaosReport = asked[-1]
            return report

    monkeypatch.setattr("signal.signal", lambda *_: None)
    with working(Rehearsed()):
        yield asked


def test_the_report_is_printed(call: Call, told: list[Any]) -> None:
    """A line for each fault and each check; the last line is for programs."""
    result = call("chaos", DEMO, "--seed", "3", "--faults", "2", "--set", "training.rounds=50")
    assert result.exit_code == 0, result.stderr
    assert told[0] == ("demo", 50, ChaosRequest(faults=2, seed=3))
    assert "1.23" in result.stdout
    assert "desk" in result.stdout and "never" in result.stdout and "bit for bit" in result.stdout
    assert "50 rounds: 20 s with the faults, in 2 starts; 10 s without" in result.stdout
    assert "throughput: 91.0% of what the devices that were left could give, 2 s lost;" in result.stdout
    assert "but for the coordinator's ends 98.2%, 0.25 s lost by each fault" in " ".join(result.stdout.split())
    assert "undisturbed rounds took 1.017 times as long as without faults" in " ".join(result.stdout.split())
    last = json.loads(result.stdout.splitlines()[-1])
    assert last["chaos"] == "demo" and last["ok"] is True and len(last["faults"]) == 2
    assert last["throughput"]["ratio_of_devices"] == 0.982
    assert document(call("chaos", DEMO, "--json")) == last


def test_what_does_not_hold_ends_with_1(call: Call, told: list[Any]) -> None:
    """The error names it, and where both trainings are."""
    told[-1] = replace(REPORT, checks=(Check(name="weights are equal", ok=False, found="w differs"),), folder="kept/x")
    result = call("chaos", DEMO)
    assert result.exit_code == 1 and json.loads(result.stdout.splitlines()[-1])["ok"] is False
    assert "weights are equal: w differs; both trainings are in kept/x" in result.stderr


@pytest.mark.parametrize("command", REHEARSALS)
def test_a_command_of_the_documentation(
    call: Call, told: list[Any], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """It works as written."""
    monkeypatch.chdir(REPOSITORY)
    assert call(*shlex.split(command)).exit_code == 0 and len(told) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([DEMO.with_name("asteroid-b.yaml")], "are no processes of this machine"),
        ([DEMO.with_name("edge-docker.yaml")], "are no processes of this machine"),
        ([DEMO, "--faults", "38"], "38 faults need 41 rounds, one each, and training.rounds is 40; give at most 37"),
        ([DEMO, "--faults", "0"], "faults must be a number above 0 (got 0)"),
        ([DEMO, "--faults", "0", "--minutes", "1"], "faults must be a number above 0 (got 0)"),
        ([DEMO, "--minutes", "0"], "minutes must be a number above 0 (got 0.0)"),
        ([DEMO, "--faults", "many"], "Invalid value for '--faults'"),
    ],
)
def test_what_no_fault_can_befall(
    call: Call, root: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[Any], said: str
) -> None:
    """It is refused before anything is measured or written."""

    class Unasked(Work):
        def run_with(self, *_: Any) -> Any:
            pytest.fail("the pipeline was run")

    monkeypatch.setattr("signal.signal", lambda *_: None)
    with working(Unasked()):
        result = call("chaos", *arguments)
    assert (result.exit_code, result.stdout) == (64, ""), result.stderr
    assert said in result.stderr and not root.exists()
