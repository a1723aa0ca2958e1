"""The plan stage: a plan, its forecast, and a report of both for plans that are never trained."""

from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.task import RunFacts, StageTask
from fleetune.planning import Problem
from stages.entry_point import StageContext
from stages.plan import plan
from tests.support.planning.instances import scored, small

FACTS = RunFacts(
    name="mine", started="2026-01-02T12:00:00+00:00", code_version="0.1.0", commit="4f3a", settings="seed: 9"
)


class Silent:
    """A channel that ignores what is said."""

    def progress(self, *_: Any) -> None:
        """Ignore progress."""

    def note(self, text: str) -> None:
        """Ignore a sentence."""


def planned(folder: Path, problem: Problem, strategy: str, facts: RunFacts = FACTS) -> str:
    """The HTML report that the stage writes beside the plan."""
    for name, record in (("fleet", problem.fleet), ("profile", problem.profile)):
        json_io.write(record, folder / name / f"{name}.json")
    samples = {"batch_samples": problem.micro_batch_samples * problem.micro_batches}
    task = StageTask(
        stage="plan",
        run="mine-20260102-120000-abcd",
        seed=9,
        config={
            "strategy": {"name": strategy, "options": problem.options},
            "training": {**samples, "micro_batch_samples": problem.micro_batch_samples},
        },
        inputs={name: str(folder / name) for name in ("fleet", "profile")},
        output=str(folder / "out"),
        work=str(folder / "work"),
        facts=facts,
    )
    plan(StageContext(task=task, channel=Silent()))  # type: ignore[arg-type]
    assert sorted(path.name for path in (folder / "out" / "plan").iterdir()) == [
        "forecast.json", "plan.json", "report.html"
    ]  # fmt: skip
    return (folder / "out" / "plan" / "report.html").read_text()


@pytest.mark.parametrize("strategy", ["d2ft", "lola-deft", "split-learning", "pp"])
def test_every_plan_has_a_report(strategy: str, tmp_path: Path) -> None:
    """Bug: plans that are never trained had no report, since reports were made of evaluations only."""
    problem = small(micro_batch_samples=4, micro_batches=6)
    page = planned(tmp_path, scored(problem) if strategy == "d2ft" else problem, strategy)
    assert "Nothing was trained" in page
    for said in ("mine: a plan", "mine-20260102-120000-abcd", "2026-01-02T12:00:00", "4f3a", "seed: 9", strategy):
        assert said in page
    assert "measured" not in page.split("</style>")[1]


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    """The report of a task without facts has no empty entries."""
    page = planned(tmp_path, small(micro_batch_samples=4, micro_batches=6), "pp", RunFacts())
    assert "<dt>commit</dt>" not in page and "Settings" not in page
