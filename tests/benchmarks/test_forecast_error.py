"""The list of runs of `benchmarks.forecast_error`, and its figures."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks import CONFIGS
from benchmarks.forecast_error.runs import ALL, STRATEGIES, CompletedRun, FailedRun, FleetCase
from benchmarks.forecast_error.table import table
from fleetune import planning
from fleetune.contracts.metrics import Interval
from flows import configs

RUN = CompletedRun(
    fleet="home",
    strategy="search",
    forecast_s=0.96,
    interval=Interval(low_s=0.9, high_s=1.1),
    rounds_s=(0.9, 1.0, 1.1),
    load=1.0,
    ready_s=2.0,
    workers=1,
    forecast_period_s=1.2,
    period_s=1.25,
)


def test_the_list_has_every_strategy() -> None:
    """Four strategies on three fleets, and one run of each other strategy; no run has the name of another."""
    listed = [(case.name, strategy) for case in ALL for strategy in case.strategies]
    assert len(set(listed)) == len(listed) == 16
    names = {"asteroid" if strategy == "search" else strategy for _, strategy in listed}
    assert names == set(planning.strategies())
    assert [case.strategies for case in ALL[:3]] == [STRATEGIES] * 3


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_every_run_of_the_list_is_accepted(case: FleetCase, tmp_path: Path) -> None:
    """Its run file is read as one of a user's, its options belong to its strategy and its quotas fit two cores."""
    for kind in ("models", "data"):
        (tmp_path / kind).symlink_to(CONFIGS / kind)
    (tmp_path / "runs").mkdir()
    for strategy in case.strategies:
        path = tmp_path / "runs" / f"{strategy}.yaml"
        path.write_text(yaml.safe_dump(case.config(strategy, "fleetune-mounted")), encoding="utf-8")
        read = configs.load(path)
        planning.validate_request(read.strategy, case.devices, scores=read.profile.scores)
    assert sum(case.cores) <= 1.9, "no forecast holds for more than there is"


def test_errors_bias_and_coverage_are_figures() -> None:
    """Errors count without their sign, the bias with it, and the coverage is the share of rounds within intervals."""
    runs = [RUN, replace(RUN, strategy="dp", forecast_s=1.08), replace(RUN, strategy="pp", rounds_s=(1.2,))]
    sheet = table(ALL, runs)
    found = {figure.name: figure for figure in sheet.figures}
    assert found["forecast_error_median"].value == pytest.approx(0.08)
    assert found["forecast_error_worst"].value == pytest.approx(0.2)
    assert found["forecast_bias"].value == pytest.approx(abs(-0.04 + 0.08 - 0.2) / 3)
    assert "mean error -5.3%" in found["forecast_bias"].about
    assert found["interval_coverage"].value == pytest.approx(2 / 3)
    assert sheet.rows[0][4] == "0.900 - 1.100"


def test_an_error_of_every_run_stays_and_one_of_some_minutes_does_not() -> None:
    """The figures are those of the median run of each row, whose runs came in turns; noise is how far they differ."""
    turns = [
        [replace(RUN, forecast_s=search_s), replace(RUN, strategy="dp", forecast_s=dp_s)]
        for search_s, dp_s in ((1.02, 0.95), (1.3, 0.93), (0.99, 0.94))
    ]
    sheet = table(ALL, [run for turn in turns for run in turn])
    found = {figure.name: figure for figure in sheet.figures}
    assert [(row[1], row[2], row[7], row[8]) for row in sheet.rows] == [
        ("search", "3", "+2.0%", "31.0%"),
        ("dp", "3", "-6.0%", "2.0%"),
    ]
    assert found["forecast_error_worst"].value == pytest.approx(0.06)
    assert found["forecast_bias"].value == pytest.approx(0.02)
    assert found["single_run_error_median"].value == pytest.approx((0.05 + 0.06) / 2)
    assert found["single_run_error_median"].spread == pytest.approx((0.01, 0.3))
    assert found["noise_median"].value == pytest.approx((0.31 + 0.02) / 2)


def test_one_run_of_each_knows_no_noise() -> None:
    """What a single run cannot tell is neither a cell nor a figure."""
    sheet = table(ALL, [RUN, replace(RUN, strategy="dp")])
    assert [row[8] for row in sheet.rows] == ["", ""]
    assert not {"noise_median", "single_run_error_median"} & {figure.name for figure in sheet.figures}


def test_a_machine_whose_speed_changes_is_told_from_a_wrong_forecast() -> None:
    """Of a machine that gets steadily slower, the mean of the forecasts before and after a training is right."""
    slower = replace(RUN, forecast_s=0.9, later_forecast_s=1.1)
    wrong = replace(RUN, strategy="dp", forecast_s=0.9, later_forecast_s=0.9)
    sheet = table(ALL, [slower, wrong, replace(RUN, strategy="pp")])
    found = {figure.name: figure for figure in sheet.figures}
    assert found["error_without_drift_median"].value == pytest.approx((0.0 + 0.1) / 2)
    assert found["drift_median"].value == pytest.approx((0.2 / 0.9 + 0.0) / 2)
    assert [row[9:11] for row in sheet.rows] == [("+22.2%", "+0.0%"), ("+0.0%", "-10.0%"), ("", "")]
    assert "drift_median" not in {figure.name for figure in table(ALL, [RUN]).figures}


def test_what_lies_between_rounds_has_an_error_of_its_own() -> None:
    """From commit to commit, over the runs whose forecast has it; the others show what was measured."""
    unknown = replace(RUN, strategy="dp", forecast_period_s=0.0)
    runs = [RUN, replace(RUN, strategy="pp", period_s=1.0), unknown]
    sheet = table(ALL, runs)
    found = {figure.name: figure for figure in sheet.figures}["commit_to_commit_error_median"]
    assert found.value == pytest.approx((0.04 + 0.2) / 2) and "mean +8.0%" in found.about
    assert [row[11:13] for row in sheet.rows] == [
        ("1.200 / 1.250", "-4.0%"),
        ("1.200 / 1.000", "+20.0%"),
        ("1.250", ""),
    ]
    assert "commit_to_commit_error_median" not in {figure.name for figure in table(ALL, [unknown]).figures}


def test_runs_without_intervals_and_failed_runs_leave_figures_without_a_value() -> None:
    """A figure that cannot be given says why; a failed run is a row."""
    bare = {figure.name: figure for figure in table(ALL, [replace(RUN, interval=None)]).figures}
    assert bare["interval_coverage"].value is None and bare["forecast_bias"].value is not None
    sheet = table(ALL, [RUN, FailedRun(fleet="home", strategy="dp", why="no engine")])
    failed = {figure.name: figure for figure in sheet.figures}
    for name in ("forecast_error_median", "forecast_error_worst", "forecast_bias", "interval_coverage"):
        assert failed[name].value is None and "home/dp" in failed[name].why
    assert sheet.rows[0][-1] == "failed: no engine" and len(sheet.rows[0]) == len(sheet.columns)
