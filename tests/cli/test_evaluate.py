"""`fleetune evaluate`: what it runs, and what it refuses."""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetune.store import RunRecord, Store
from flows.cli.work import Work
from flows.context import RunContext
from flows.reevaluation import EvaluationRequest, reevaluation
from flows.runner import Runner
from stages.catalog import EVALUATE
from tests.support.cli.calls import Call, document, working
from tests.support.cli.documentation import COMMANDS, REPOSITORY
from tests.support.cli.runs import add_run
from tests.support.flows.past_runs import trained_run


class Evaluation(Work):
    """Evaluates nothing; `ended` is the run that each one ends as, None for the last one of the store."""

    def __init__(self) -> None:
        self.runners: list[Runner] = []
        self.ended: RunRecord | None = None
        self.prepared: RunRecord | None = None
        """What the run that prepares other data ends as."""

    def run_made(self, context: RunContext, make: Callable[[RunContext], Runner]) -> RunRecord:
        """Note the runner."""
        self.runners.append(make(context))
        return self.ended or context.store.runs.load("latest")

    def run_with(self, *_: Any) -> RunRecord:
        """Prepare nothing."""
        assert self.prepared is not None
        return self.prepared


@pytest.fixture
def evaluation(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Evaluation]:
    """An evaluation that evaluates nothing."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with working(stand_in := Evaluation()):
        yield stand_in


@pytest.fixture
def made(evaluation: Evaluation) -> list[Runner]:
    """The runs that were started, which end as the last run of the store has ended."""
    return evaluation.runners


def test_one_stage_on_the_past_runs_artifacts(call: Call, root: Path, made: list[Runner]) -> None:
    """The command runs what the flow `evaluate` runs: one stage, on exactly what the past run has made."""
    past = trained_run(Store(root))
    told = document(call("evaluate", past.id[:10], "--force", "--json"))
    assert told["run"]["id"] == past.id
    (runner,) = made
    assert [spec.name for spec in runner.specs] == [EVALUATE.name] and dict(runner.given) == past.outputs
    assert runner.rerun_of == past.id and runner.selection.force


def test_results_are_printed(call: Call, root: Path, evaluation: Evaluation) -> None:
    """People read the scores and the run. Bug: all samples were called not trained on."""
    past = evaluation.ended = add_run(root, 1)
    result = call("evaluate", trained_run(Store(root)).id)
    assert result.exit_code == 0, result.stderr
    assert "5.5" in result.stdout and past.id in result.stdout
    assert "on 200 samples" in result.stdout and "not trained on" not in result.stdout, "an older version did not count"


@pytest.mark.parametrize(
    ("request_", "share", "said"),
    [
        (EvaluationRequest(run="latest", data="docstrings"), None, "the rows that a training on it would test on"),
        (EvaluationRequest(run="latest", changes=("data.source=digits",)), 1.0, "is scored whole"),
    ],
)
def test_the_help_says_how_much_is_scored(
    call: Call,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    request_: EvaluationRequest,
    share: float | None,
    said: str,
) -> None:
    """Bug: it said all of other data, and of a set in configs/data a fifth was scored."""
    monkeypatch.chdir(REPOSITORY)
    trained_run(Store(root))
    assert reevaluation(request_, Store(root)).config.data.validation == share
    assert said in " ".join(call("evaluate", "--help").stdout.replace("│", "").split())


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("evaluate")])
def test_a_command_of_the_documentation(
    call: Call, root: Path, evaluation: Evaluation, made: list[Runner], command: str
) -> None:
    """Each command that evaluates works as written; other data are prepared first, here by what the run had."""
    past = evaluation.prepared = trained_run(Store(root))
    result = call(*shlex.split(command))
    assert result.exit_code == 0, result.stderr
    (runner,) = made
    assert past.id in result.stdout and (runner.config.data != past.config.data) == ("--set" in command)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "nothing"),
        (["demo", "--data", "digitz"], "digits"),
        (["demo", "--set", "training.rounds=3"], "about the data"),
    ],
)
def test_refusals(
    call: Call, root: Path, made: list[Runner], monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    """What cannot be evaluated is refused with exit code 64 before anything runs."""
    trained_run(Store(root))
    result = call("evaluate", *words)
    assert result.exit_code == 64 and said in result.stderr and made == []
