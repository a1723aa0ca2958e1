"""`fleetune compare`: the table, the document, the exit codes, and the commands of the documentation."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetune.errors import Infeasible, TryAgain
from fleetune.store import RunRecord, Store
from flows.comparison import archive
from tests.support.cli.calls import Call, document, working
from tests.support.cli.documentation import COMMANDS, REPOSITORY
from tests.support.flows.comparison.stand_in import StandIn

DEMO = Path(__file__).parents[2] / "configs" / "runs" / "demo.yaml"
COMPARISONS = [command for command in COMMANDS if command.startswith("compare")]


@pytest.fixture
def pipeline(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A pipeline that computes nothing; strategies are named by the files of the repository."""
    monkeypatch.chdir(REPOSITORY)
    stand_in = StandIn(Store(root))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with working(stand_in):
        yield stand_in


def test_the_answer_is_printed(call: Call, pipeline: StandIn, root: Path) -> None:
    """A row per strategy, the answer in a sentence, and the page, which is there."""
    result = call("compare", DEMO, "--strategies", "single, dp")
    assert result.exit_code == 0, result.stderr
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.strip()}
    assert rows["single"][1:3] == ["4", "s"] and rows["dp"][1:3] == ["2", "s"]
    assert "By the clock dp is the fastest (2 s a round, 2.00 times as fast as single)." in result.stdout
    page = Path(result.stdout.splitlines()[-1].split()[1])
    assert page.is_relative_to(root) and "<h1>demo" in page.read_text()


def test_the_document_is_the_comparison(call: Call, pipeline: StandIn, root: Path) -> None:
    """With --json stdout is the comparison as the store keeps it; --train measures."""
    told = document(
        call("compare", DEMO, "--strategies", "single,dp", "--train", "--set", "training.rounds=2", "--json")
    )
    stored = archive.load(Store(root), told["id"])
    assert told["rounds"] == stored.rounds == 2
    assert [row["measured"]["round_s"] for row in told["strategies"]] == [5.0, 2.5]
    assert told["target_loss"] == stored.target_loss == 1.5


@pytest.mark.parametrize(("error", "code"), [(Infeasible("too small"), 65), (TryAgain("busy"), 75)])
def test_no_plan_is_an_error(call: Call, pipeline: StandIn, error: Exception, code: int) -> None:
    """Without any plan the exit code tells whether a retry helps, and the reason is told."""
    pipeline.errors = {("single", "plan"): error}  # type: ignore[dict-item]
    result = call("compare", DEMO, "--strategies", "single")
    assert result.exit_code == code and str(error) in result.stderr


@pytest.mark.parametrize("names", ["astroid", "", "dp,dp"])
def test_a_wrong_name_is_refused(call: Call, pipeline: StandIn, names: str) -> None:
    """An unknown, a missing and a repeated name end with exit code 64 before anything runs."""
    result = call("compare", DEMO, "--strategies", names)
    assert result.exit_code == 64 and not pipeline.asked
    assert re.search("allowed are .*single|twice", result.stderr)


def test_an_interruption_says_how_to_go_on(call: Call, pipeline: StandIn, root: Path) -> None:
    """Ctrl-C ends the whole comparison, not only the strategy that was running."""

    class Stopped(StandIn):
        def run_with(self, *given: Any) -> RunRecord:
            if len(pipeline.asked) == 1:
                raise KeyboardInterrupt
            return pipeline.run_with(*given)

    with working(Stopped(Store(root))):
        result = call("compare", DEMO, "--strategies", "single,dp")
    assert result.exit_code == 130 and "the same command goes on" in result.stderr
    assert len(pipeline.asked) == 1


def test_the_documentation_shows_comparisons() -> None:
    """The page about daily use compares strategies."""
    assert COMPARISONS


@pytest.mark.parametrize("command", COMPARISONS)
def test_a_comparison_of_the_documentation(call: Call, pipeline: StandIn, command: str) -> None:
    """Each command that compares works as written, with a pipeline that computes nothing."""
    result = call(*shlex.split(command))
    assert result.exit_code == 0, result.stderr
    assert "By the clock" in result.stdout or '"strategies"' in result.stdout
