"""`fleetune solve` around a stand-in solver: input, output and refusals."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fleetune import solving
from fleetune.contracts import json_io
from fleetune.solving import Kind
from flows.cli.app import app
from flows.cli.work import Work
from tests.support.cli.calls import Call, document, files, working
from tests.support.solving.hpp.instances import drawn
from tests.support.solving.stand_in import KIND, solution

SUMMARY = "best: round 12.5 ms (25.0 % above its bound), 2 stages nano-0+nano-1 | tx2, solved in 250 ms"


@contextmanager
def solver(kind: Kind) -> Iterator[None]:
    """Have problems of kind hpp solved by this solver."""

    class Solvers(Work):
        def solvers(self) -> dict[str, Kind]:
            return {"hpp": kind}

    with working(Solvers()):
        yield


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch, root: Path) -> Iterator[None]:
    """A stand-in solver; a problem lies in the working directory, and signal handlers stay unchanged."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (root.parent / "p.json").write_text(json_io.text(drawn()))
    with solver(KIND):
        yield


def test_a_plan_is_written_and_told(call: Call, tmp_path: Path) -> None:
    """-o writes the whole plan as JSON, and stdout has one line."""
    result = call("solve", "p.json", "-o", "plan.json", "--seed", "0")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.endswith("; plan.json\n")
    assert json.loads((tmp_path / "plan.json").read_text()) == solving.document(solution(lower_bound=None))
    assert set(files(tmp_path)) == {str(tmp_path / "p.json"), str(tmp_path / "plan.json")}


def test_without_a_file_nothing_is_written(call: Call, tmp_path: Path) -> None:
    """Only the line is printed, with the gap to the bound where one is known."""
    result = call("solve", "p.json")
    assert result.stdout == "best: round 12.5 ms, 2 stages nano-0+nano-1 | tx2, solved in 250 ms\n"
    assert set(files(tmp_path)) == {str(tmp_path / "p.json")}


def test_the_gap_is_told(call: Call) -> None:
    """The line shows by how many percent the plan exceeds its bound."""
    with solver(KIND._replace(solve=lambda *_, **__: solution())):
        assert call("solve", "p.json").stdout == SUMMARY + "\n"


def test_json_prints_the_plan_alone(call: Call, tmp_path: Path) -> None:
    """--json prints the plan on stdout, byte for byte as -o writes it."""
    result = call("solve", "p.json", "--json", "-o", "plan.json")
    assert document(result) == solving.document(solution(lower_bound=None))
    assert (tmp_path / "plan.json").read_text() == result.stdout


def test_stdin_is_a_problem_too(root: Path) -> None:
    """`-` reads the problem from stdin, and messages name it `stdin`."""
    runner = CliRunner(env={"FLEETUNE_ROOT": str(root)})
    assert document(runner.invoke(app, ["solve", "-", "--json"], input=json_io.text(drawn())))["method"] == "best"
    refused = runner.invoke(app, ["solve", "-"], input="{}")
    assert (refused.exit_code, refused.stderr) == (64, "stdin: kind: this key is required; allowed are hpp\n")


def test_an_infeasible_plan_of_a_blind_method_is_still_a_plan(call: Call, tmp_path: Path) -> None:
    """The plan is written with its reason, the line begins with x, and the exit code is 0."""
    result = call("solve", "p.json", "--method", "blind", "-o", "plan.json")
    assert result.exit_code == 0
    assert result.stdout.startswith("x blind: infeasible: device nano-1 lacks 600 bytes for layers embed to body; if")
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert (plan["feasible"], plan["reason"]) == (False, "device nano-1 lacks 600 bytes for layers embed to body")


def test_an_infeasible_problem_ends_with_65(call: Call, tmp_path: Path) -> None:
    """The binding constraint is named and no file is left."""
    result = call("solve", "p.json", "--method", "never", "-o", "plan.json")
    assert (result.exit_code, result.stdout) == (65, "")
    assert result.stderr.startswith("device nano-0 lacks 500 bytes for layer embed alone")
    assert set(files(tmp_path)) == {str(tmp_path / "p.json")}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "solve: no problem is given; give a JSON file, - for stdin, or --list"),
        (["none.json"], "none.json: cannot be read (No such file or directory); give an existing JSON file"),
        (["."], ".: cannot be read (Is a directory)"),
        (["a\0b"], "cannot be read (embedded null byte)"),
        (["p.json", "--list"], "--list: takes no problem (got 'p.json')"),
        (["p.json", "--method", "magic"], "method 'magic' is not known for kind hpp; allowed are best, blind, never"),
        (["p.json", "--time-limit", "0"], "time limit: 0.0 is not a number above 0"),
        (["p.json", "--time-limit", "nan"], "time limit: nan is not a number above 0"),
        (["p.json", "--time-limit", "soon"], "Invalid value for '--time-limit'"),
        (["p.json", "--seed", "-1"], "seed: -1 is below 0"),
        (["p.json", "--seed", "1.5"], "Invalid value for '--seed'"),
        (["p.json", "-o", "none/plan.json"], "-o none/plan.json: there is no folder "),
        (["p.json", "-o", "."], "-o .: it is a folder; give a file in it"),
        (["p.json", "-o", "-"], "-o -: give a file; --json prints the plan on stdout"),
        (["p.json", "-o", "p.json"], "-o p.json: it is the problem itself; give another file"),
        (["p.json", "-o", "p.json/plan"], "there is no folder "),
        (["p.json", "-o", "p" * 300], "cannot be written (File name too long); give another file"),
        (["p.json", "-o", "loop/plan.json"], "-o loop/plan.json: "),
        (["p.json", "--root", "."], "No such option: --root"),
        (["broken.json", "-o", "plan.json"], "broken.json: micro_batch: 0 is below 1"),
    ],
)
def test_refused(call: Call, tmp_path: Path, arguments: list[str], said: str) -> None:
    """A refusal is one sentence with exit code 64; stdout stays empty and no file is written."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "broken.json").write_text(json.dumps(json_io.dump(drawn()) | {"micro_batch": 0}))
    before = files(tmp_path)
    result = call("solve", *arguments)
    assert (result.exit_code, result.stdout) == (64, "")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert files(tmp_path) == before


def test_a_place_that_cannot_be_is_refused_before_solving(call: Call) -> None:
    """An output path that cannot be written is refused before the solver starts."""

    def unasked(*_: Any, **__: Any) -> Any:
        raise AssertionError("the solver was asked")

    with solver(KIND._replace(solve=unasked)):
        assert call("solve", "p.json", "-o", "none/plan.json").exit_code == 64


def test_a_stopped_search_leaves_no_file(call: Call, tmp_path: Path) -> None:
    """Ctrl-C and SIGTERM exit with 130, and an older plan stays unchanged."""

    def stopped(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    (tmp_path / "old.json").write_text("mine")
    before = files(tmp_path)
    with solver(KIND._replace(solve=stopped)):
        for target in ("plan.json", "old.json"):
            assert call("solve", "p.json", "-o", target).exit_code == 130
    assert files(tmp_path) == before


def test_a_full_disk_leaves_no_file(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that cannot be written completely leaves no file."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    before = files(tmp_path)
    monkeypatch.setattr(os, "rename", full)
    result = call("solve", "p.json", "-o", "plan.json")
    assert (result.exit_code, result.stdout) == (75, "")
    assert "no room" in result.stderr and "give another file" in result.stderr
    assert files(tmp_path) == before


def test_links_and_pipes_stay_what_they_are(call: Call, tmp_path: Path) -> None:
    """A symbolic link is followed and a pipe is written to; neither is replaced by a file."""
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    assert call("solve", "p.json", "-o", "link.json").exit_code == 0
    assert (tmp_path / "link.json").is_symlink() and (tmp_path / "real.json").is_file()
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert call("solve", "p.json", "-o", "pipe").exit_code == 0
    assert os.read(reader, 65536) == (tmp_path / "real.json").read_bytes()
    os.close(reader)


def test_the_list_names_kinds_and_methods(call: Call) -> None:
    """--list prints one line per method with the default first and marked; --json gives the same."""
    result = call("solve", "--list")
    assert result.stdout.splitlines()[1:] == [
        "  best   the stand-in's best (default)",
        "  blind  ignores memory",
        "  never  finds nothing",
    ]
    listed = document(call("solve", "--list", "--json"))
    assert [(kind["kind"], list(kind["methods"])) for kind in listed["kinds"]] == [("hpp", ["best", "blind", "never"])]


DEAF = """
import hashlib, os, signal
from fleetune import solving

def deaf(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # minutes in which no Python code runs on this thread

solving.solve = deaf
from flows.cli import main
main()
"""


def test_compiled_code_does_not_deafen(call: Call, tmp_path: Path) -> None:
    """Bug: Ctrl-C and SIGTERM waited 13 minutes for compiled code to return; the command must end at once. (SIGTERM is
    sent because a test may have been started with SIGINT ignored.)"""
    before = files(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", DEAF, "solve", str(tmp_path / "p.json"), "-o", str(tmp_path / "plan.json")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (130, "stopped; no plan was written\n")
    assert files(tmp_path) == before
