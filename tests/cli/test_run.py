"""`run` and `rerun`: arguments passed to the pipeline, and output during and after the run."""

import tempfile
from pathlib import Path

import pytest

from fleetune.errors import Infeasible, TryAgain
from flows.context import StageSelection
from tests.support.cli.calls import Call, document
from tests.support.cli.runs import add_run
from tests.support.cli.stand_in import Pipeline

DEMO = Path(__file__).parents[2] / "configs" / "runs" / "demo.yaml"
SIMULATED = DEMO.with_name("asteroid-b.yaml")


def test_run_tells(call: Call, pipeline: Pipeline) -> None:
    """Without a terminal each start, end and note of a stage is one line; the results follow."""
    result = call("run", DEMO)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[:5] == [
        "run       started - small-1",
        "profile   reused - same key as small-0",
        "train     started - training.rounds changed",
        "train     note - a remark",
        "train     done in 1.2 s - training.rounds changed",
    ]
    assert "5.5" in result.stdout and "+10.0%" in result.stdout
    *_, report, model, last = result.stdout.splitlines()
    assert report.startswith("report ") and report.endswith("report.html")
    assert model.startswith("model ") and Path(model.split()[1], "config.json").is_file()
    assert last == "run     small-1"
    assert result.stderr == ""


def test_run_for_a_program(call: Call, pipeline: Pipeline) -> None:
    """With --json stdout is one document: the run and its results."""
    shown_json = document(call("run", DEMO, "--json"))
    assert shown_json["run"]["id"] == "small-1"
    assert shown_json["results"]["metrics"]["scores"][0]["after"] == 5.5


def test_run_asks(call: Call, pipeline: Pipeline) -> None:
    """The pipeline gets the config with every --set, and the selection for a dry run."""
    call("run", DEMO, "--set", "training.rounds=2", "--set", "seed=7", "--dry-run")
    call("run", DEMO, "--until", "plan")
    [(config, selection, dry_run), (_, until, _)] = pipeline.asked
    assert (config.training.rounds, config.seed, dry_run) == (2, 7, True)
    assert (selection, until) == (StageSelection(), StageSelection(until="plan"))


def test_rerun_asks(call: Call, pipeline: Pipeline, root: Path) -> None:
    """A rerun takes the config of the earlier run, with changes, from a stage on or for one stage only."""
    earlier = add_run(root, 0, rounds=5)
    call("rerun", "small-0", "--from", "train", "--set", "training.learning_rate=1e-3")
    call("rerun", "latest", "--only", "plan")
    (config, selection, _), (again, only, _) = pipeline.asked
    assert (config.training.rounds, config.training.learning_rate) == (5, 1e-3)
    assert (selection.from_stage, selection.only) == ("train", None)
    assert only.only == "plan" and again.name == earlier.config.name


@pytest.mark.parametrize(("error", "code"), [(Infeasible("slow lacks 12 MB"), 65), (TryAgain("slow left"), 75)])
def test_errors_of_stages(call: Call, pipeline: Pipeline, error: Exception, code: int) -> None:
    """Bug: no message named the run and its log; stderr holds the error of the stage, the run and the log, and the
    exit code is the error's."""
    pipeline.error = error
    result = call("run", DEMO)
    assert result.exit_code == code
    sentence, run, log = result.stderr.splitlines()
    assert (sentence, run) == (str(error), "run     small-1")
    assert log.startswith("log     ") and Path(log.split()[1]).is_file()
    assert "Traceback" not in result.output


def test_an_error_before_the_run_began(call: Call, pipeline: Pipeline) -> None:
    """Neither run nor log is named when the run had not begun."""
    pipeline.error, pipeline.begun = TryAgain("nothing answers"), False
    assert call("run", DEMO).stderr == "nothing answers\n"


def test_unforeseen(call: Call, pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected exception ends in one sentence that names a file with the traceback, and exit code 75."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pipeline.error = ZeroDivisionError("no pace\nat all")
    result = call("run", DEMO)
    assert result.exit_code == 75
    assert result.stderr.startswith("unforeseen ZeroDivisionError (no pace): the traceback is in ")
    story = Path(result.stderr.splitlines()[0].split()[-1]).read_text()
    assert story.startswith("Traceback") and "no pace\nat all" in story


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["run", DEMO], "stopped; the same command goes on from what is finished"),
        (["rerun", "small-0", "--from", "train"], "stopped; go on with: fleetune rerun small-1 --root ROOT"),
        (
            ["rerun", "small-0", "--only", "train"],
            "stopped; go on with: fleetune rerun small-1 --only train --root ROOT",
        ),
    ],
)
def test_stopped(call: Call, pipeline: Pipeline, root: Path, command: list[str | Path], said: str) -> None:
    """Bug: after Ctrl-C `the same command` was advised for `rerun --from` too, which would begin anew; the message
    names the command that continues, with exit code 130."""
    add_run(root, 0)
    pipeline.error = KeyboardInterrupt()
    result = call(*command)
    assert (result.exit_code, result.stderr) == (130, said.replace("ROOT", str(root)) + "\n")


def test_stopped_before_the_run_began(call: Call, pipeline: Pipeline) -> None:
    """The message promises no continuation of a run that had not begun."""
    pipeline.error, pipeline.begun = KeyboardInterrupt(), False
    result = call("run", DEMO)
    assert (result.exit_code, result.stderr) == (130, "stopped before the run began\n")


def test_dry_run_of_the_real_pipeline(call: Call, root: Path) -> None:
    """A dry run says of every stage whether it would run and why, and writes nothing."""
    shown_json = document(call("run", DEMO, "--dry-run", "--json"))
    assert shown_json["run"]["state"] == "planned" and shown_json["results"] is None
    assert [stage["stage"] for stage in shown_json["run"]["stages"]][:4] == ["discover", "prepare", "profile", "plan"]
    shown = call("run", DEMO, "--dry-run")
    assert "would" in shown.stdout and "never run before" in shown.stdout
    assert not root.exists()


def test_a_simulated_fleet_is_only_planned_for(call: Call, root: Path) -> None:
    """A run on simulated devices without --until plan is refused before anything starts or is written."""
    refused = call("run", SIMULATED)
    assert refused.exit_code == 64
    assert refused.stderr == "device nx-0 is simulated: a run with it ends after plan; use --until plan\n"
    assert not root.exists()
    planned = document(call("run", SIMULATED, "--until", "plan", "--dry-run", "--json"))
    assert [stage["stage"] for stage in planned["run"]["stages"]] == ["discover", "prepare", "profile", "plan"]
