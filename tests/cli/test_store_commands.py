"""`runs`, `show`, `verify` and `diff` print the contents of the store as tables and as JSON."""

import dataclasses
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fleetune.store import KeyRecord, RunRecord, StageRecord, Store, stage_key
from flows.cli.app import app
from tests.support.cli.calls import Call, document
from tests.support.cli.runs import add_run


def test_no_runs(call: Call, root: Path) -> None:
    """Without runs the list is empty, names the command that starts one, and no folder is created."""
    assert document(call("runs", "--json")) == {"root": str(root), "runs": [], "more": 0}
    assert "no runs in" in call("runs").stdout
    assert not root.exists()


def test_runs(call: Call, root: Path) -> None:
    """Runs are listed newest first."""
    add_run(root, 1)
    add_run(root, 2)
    listed = document(call("runs", "--json"))["runs"]
    assert [run["id"] for run in listed] == ["small-2", "small-1"]
    assert (listed[0]["state"], listed[0]["strategy"]) == ("done", "dp")
    shown = call("runs").stdout
    assert shown.index("small-2") < shown.index("small-1")
    assert "7.0 s" in shown and "2 ran" in shown


@pytest.mark.parametrize("columns", [30, 40, 60, 80, 100, 200])
def test_runs_fit_their_terminal(call: Call, root: Path, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Bug: at 80 columns ids and words were broken; every word is whole at any width, and no line is too long."""
    monkeypatch.setenv("COLUMNS", str(columns))
    run = add_run(root, 1)
    long = dataclasses.replace(
        run,
        id="demo-20261122-041841-5816",
        state="interrupted",
        stages=tuple(dataclasses.replace(stage, state="failed") for stage in run.stages),
    )
    Store(root).runs.save(long)
    lines = call("runs").stdout.splitlines()
    words = [word for line in lines for word in line.replace(",", " ").split()]
    for word in ("small-1", "demo-20261122-041841-5816", "interrupted", "failed", "train", "ran"):
        assert word in words, word
    assert max(map(len, lines)) <= max(columns, 32)
    assert ("started" in words, "strategy" in words) == (columns >= 100, columns >= 80)


def test_a_pipe_has_no_width(root: Path) -> None:
    """Output to a pipe has each run on one line."""
    add_run(root, 1)
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [sys.executable, "-c", "from flows.cli import main; main()", "runs", "--root", str(root)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    [line] = [line for line in ended.stdout.splitlines() if "small-1" in line]
    assert line.split()[-2:] == ["2", "ran"] and "dp" in line


def test_version(call: Call) -> None:
    """--version prints name and number without importing a run."""
    assert call("--version").stdout == f"fleetune {metadata.version('fleetune')}\n"


def test_root(call: Call, root: Path) -> None:
    """--root wins over FLEETUNE_ROOT, which wins over ./runs."""
    assert document(call("runs", "--json"))["root"] == str(root)
    assert document(call("runs", "--json", "--root", "there"))["root"] == "there"
    assert document(CliRunner().invoke(app, ["runs", "--json"]))["root"] == "runs"


def test_show_run(call: Call, root: Path) -> None:
    """`show` prints the stages with reasons, scores before and after, times, bytes, memory and paths of the results."""
    run = add_run(root, 1)
    shown = call("show", "latest").stdout
    for part in (
        "small-1  done",
        "never run before",
        "6.25",
        "5.5",
        "1.100 s",
        "1.000 s",
        "+10.0%",
        "123.40 MB",
        "450.00 MB",
    ):
        assert part in shown, part
    shown_json = document(call("show", "small-1", "--json"))
    assert shown_json["run"]["id"] == run.id
    assert Path(shown_json["results"]["report"]).read_text() == "<html></html>"
    assert (Path(shown_json["results"]["model"]) / "config.json").is_file()
    assert shown_json["results"]["report"] in shown and shown_json["results"]["model"] in shown


@pytest.mark.parametrize(("code", "advice"), [(64, "change what"), (65, "change what"), (75, "go on with")])
def test_advice_after_a_failure(call: Call, root: Path, code: int, advice: str) -> None:
    """Bug: a refused run was told to go on by `rerun`, which refused it again. It has to be changed first."""
    run = dataclasses.replace(add_run(root, 1), state="failed", error="it cannot be", exit_code=code)
    Store(root).runs.save(run)
    (line,) = [line for line in call("show", "latest").stdout.splitlines() if "fleetune rerun" in line]
    assert line.startswith(advice) and "fleetune rerun small-1 " in line
    assert ("--set" in line) == (code != 75)


def test_show_stage(call: Call, root: Path) -> None:
    """`show RUN STAGE` prints the reason why the stage ran and every file it made."""
    run = add_run(root, 1)
    shown_json = document(call("show", "small-1", "train", "--json"))
    assert shown_json["stage"]["outputs"] == run.stage("train").outputs
    [artifact] = shown_json["artifacts"]
    assert artifact["files"] == [{"path": "model/config.json", "bytes": 13}]
    assert (Path(artifact["folder"]) / "model" / "config.json").stat().st_size == 13
    shown = call("show", "small-1", "train").stdout
    assert "never run before" in shown and "model/config.json" in shown and artifact["folder"] in shown


def test_memory_and_bytes_stand_beside_their_forecasts(call: Call, root: Path) -> None:
    """450 MB of 495 MB by forecast are 10 % too much; a device without a forecast has its peak alone. 120 MB that were
    to be sent of 123.4 MB are 2.8 % too few."""
    add_run(root, 1)
    shown = call("show", "small-1").stdout
    sent = next(line for line in shown.splitlines() if "bytes sent" in line)
    assert all(part in sent for part in ("120.00 MB", "123.40 MB", "-2.8%"))
    fast, slow = (
        next(line for line in shown.splitlines() if f"peak memory of {name}" in line) for name in ("fast", "slow")
    )
    assert all(part in fast for part in ("495.00 MB", "450.00 MB", "+10.0%"))
    assert "420.00 MB" in slow and "%" not in slow


def test_verify(call: Call, root: Path) -> None:
    """An untouched run is verified; one changed byte is named by its file, with exit code 64."""
    run = add_run(root, 1)
    assert document(call("verify", "small-1", "--json")) == {
        "run": "small-1",
        "artifacts": 2,
        "bytes": 552,
        "ok": True,
    }
    assert "every file of its 2 artifacts is what was stored" in call("verify", "latest").stdout
    bad = Store(root).folder("evaluation", run.outputs["evaluation"]) / "report.html"
    bad.write_text("<html>.</html>"[:13])
    result = call("verify", "small-1", "--json")
    assert (result.exit_code, result.stdout) == (64, "")
    assert str(bad) in result.stderr and "corrupt" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_diff(call: Call, root: Path) -> None:
    """Two runs differ in the setting that was changed, in the stages that depend on it, and in their scores."""
    add_run(root, 1, rounds=3, after=5.5)
    add_run(root, 2, rounds=9, after=4.5)
    shown_json = document(call("diff", "small-1", "small-2", "--json"))
    assert shown_json["settings"] == [{"key": "training.rounds", "first": 3, "second": 9}]
    assert shown_json["stages"][0] == {"stage": "train", "same": False, "why": "training.rounds changed"}
    assert shown_json["scores"][0] == {"name": "loss after", "first": 5.5, "second": 4.5}
    shown = call("diff", "small-1", "small-2").stdout
    assert "training.rounds changed" in shown and "4.5" in shown


def test_diff_of_the_same(call: Call, root: Path) -> None:
    """A run does not differ from itself."""
    add_run(root, 1)
    shown_json = document(call("diff", "small-1", "latest", "--json"))
    assert shown_json["settings"] == []
    assert all(stage["same"] for stage in shown_json["stages"])
    assert "their configs are the same" in call("diff", "latest", "latest").stdout


def test_diff_leaves_out_runs_that_are_not_done(call: Call, root: Path) -> None:
    """Bug: after a run that was cancelled, `diff previous latest` compared it, and showed that it had made nothing.
    The two newest runs that are done are compared, what is left out is said, and an id names any run.
    """
    for number in (1, 2, 3):
        add_run(root, number, rounds=number)
    store = Store(root)
    store.runs.save(dataclasses.replace(store.runs.load("small-3"), state="interrupted"))
    found = document(call("diff", "previous", "latest", "--json"))
    assert (found["first"], found["second"]) == ("small-1", "small-2")
    shown = " ".join(call("diff", "previous", "latest").stdout.split())
    assert "small-1 and small-2: runs that are not done are not counted (small-3 is interrupted)" in shown
    assert document(call("diff", "latest", "small-3", "--json"))["second"] == "small-3"
    assert "not counted" not in call("diff", "small-1", "small-3").stdout


def add_run_without_prepare(root: Path) -> RunRecord:
    """Store a run of an older version, whose `profile` also made data, graph and initial weights."""
    run, store = add_run(root, 1), Store(root)
    made = {"discover": ("fleet",), "profile": ("profile", "data"), "plan": ("plan",)}
    stages = []
    for stage, kinds in made.items():
        key = stage_key({"stage": stage})
        outputs = {}
        for kind in kinds:
            folder = root.parent / f"old-{kind}"
            folder.mkdir()
            (folder / f"{kind}.json").write_text("{}")
            outputs[kind] = store.put(kind, folder, stage_key=key, inputs={})
        store.keep_key(key, KeyRecord(stage=stage, run=run.id, outputs=outputs, ingredients={"stage": stage}))
        stages.append(StageRecord(stage=stage, key=key, state="done", outputs=outputs, how="ran", why="ran: once"))
    old = dataclasses.replace(run, id="old-1", stages=(*stages, *run.stages))
    store.runs.save(old)
    return old


def test_a_run_without_prepare_is_read(call: Call, root: Path) -> None:
    """Runs of versions with six stages are listed, shown, verified and compared."""
    add_run_without_prepare(root)
    assert {run["id"] for run in document(call("runs", "--json"))["runs"]} == {"old-1", "small-1"}
    assert "5 ran" in call("runs").stdout
    assert document(call("show", "old-1", "--json"))["results"]["metrics"]["scores"]
    kinds = [artifact["kind"] for artifact in document(call("show", "old-1", "profile", "--json"))["artifacts"]]
    assert kinds == ["profile", "data"]
    assert document(call("verify", "old-1", "--json"))["artifacts"] == 6
    for pair in (("old-1", "small-1"), ("small-1", "old-1")):
        stages = {one["stage"]: one for one in document(call("diff", *pair, "--json"))["stages"]}
        assert stages["profile"] == {"stage": "profile", "same": False, "why": "small-1 has no such stage"}
        assert stages["train"]["same"]


def test_a_run_without_prepare_is_refused_by_name(call: Call, root: Path) -> None:
    """Only commands that need `prepare` are refused, in one sentence; a rerun of everything prepares first."""
    add_run_without_prepare(root)
    shown = call("show", "old-1", "prepare")
    assert (shown.exit_code, shown.stderr) == (
        64,
        "run old-1: no stage 'prepare'; it has discover, profile, plan, train, evaluate; "
        "artifacts that are drawn: plan, fleet, profile, metrics, events\n",
    )  # fmt: skip
    refused = call("rerun", "old-1", "--from", "train", "--dry-run")
    assert refused.exit_code == 64
    assert re.fullmatch(
        r"stage discover has to run first \(.*\); give --from discover instead of --from train, or leave out --from\n",
        refused.stderr,
    )
    planned = document(call("rerun", "old-1", "--dry-run", "--json"))["run"]
    assert [stage["stage"] for stage in planned["stages"]][:2] == ["discover", "prepare"]
    assert planned["stages"][1]["why"] == "ran: never run before"


@pytest.mark.parametrize("escape", ["\x1b]0;owned\x07", "\x9b2J", "\x1b[8m"])
@pytest.mark.parametrize("asked", [["show", "latest"], ["show", "latest", "--json"], ["runs"], ["verify", "latest"]])
def test_what_a_store_says_cannot_steer_the_terminal(call: Call, root: Path, escape: str, asked: list[str]) -> None:
    """A run's source, reasons and errors are words of whoever wrote the store; control characters are spelled out."""
    run = add_run(root, 1)
    data = dataclasses.replace(run.config.data, source=f"rows{escape}.csv")
    stages = tuple(dataclasses.replace(stage, why=f"ran: {escape}", error=escape) for stage in run.stages)
    config = dataclasses.replace(run.config, data=data)
    Store(root).runs.save(dataclasses.replace(run, config=config, stages=stages, error=f"odd {escape}", state="failed"))
    ended = call(*asked)
    for character in "\x1b\x9b\x07":
        assert character not in ended.stdout + ended.stderr
