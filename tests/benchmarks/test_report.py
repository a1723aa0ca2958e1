"""The output of benchmarks: a table, then one line of JSON with fixed keys."""

import json

import pytest

from benchmarks.report import Figure, Report, median_and_spread
from fleetune.errors import Refused


def figure(value: float | None, target: float | None, better: str = "lower", **more: object) -> Figure:
    """A figure in seconds."""
    return Figure(name="round", value=value, unit="s", target=target, better=better, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "target", "better", "ok"),
    [
        (1.0, 1.0, "lower", True),
        (1.1, 1.0, "lower", False),
        (0.97, 0.97, "higher", True),
        (0.96, 0.97, "higher", False),
        (5.0, None, "lower", True),
    ],
)
def test_ok_says_whether_the_target_is_reached(value: float, target: float | None, better: str, ok: bool) -> None:
    """A value at the target reaches it; without a target any value does."""
    assert figure(value, target, better).ok is ok


def test_what_could_not_be_measured_is_not_ok_and_says_why() -> None:
    """A figure without a value is not ok, with or without a target, and must give a reason."""
    missing = figure(None, None, why="no accelerator here")
    assert missing.to_json()["value"] is None and missing.to_json()["ok"] is False
    assert missing.to_json()["why"] == "no accelerator here"
    with pytest.raises(ValueError, match="say why"):
        figure(None, 1.0)


def test_figures_are_finite_and_better_in_one_of_two_ways() -> None:
    """Infinite values and unknown values of `better` are refused."""
    with pytest.raises(ValueError, match="finite"):
        figure(float("inf"), None)
    with pytest.raises(Refused, match="better"):
        figure(1.0, None, "faster")


def test_middle_is_the_median_with_its_spread() -> None:
    """The median of 3, 1, 2 is 2, with spread 1 to 3."""
    assert median_and_spread([3.0, 1.0, 2.0]) == {"value": 2.0, "spread": (1.0, 3.0)}


def test_the_last_line_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    """The last line has exactly the agreed keys."""
    report = Report("toy", quick=True, cores=2, load_before=0.256)
    report.add([figure(0.9, 1.0, spread=(0.8, 1.2), about="seconds of a round"), figure(None, 1.0, why="too noisy")])
    report.print()
    table, line = capsys.readouterr().out.rstrip("\n").rsplit("\n", 1)
    assert json.loads(line) == {
        "bench": "toy",
        "quick": True,
        "machine": {"cores": 2, "load_before": 0.26},
        "figures": [
            {"name": "round", "value": 0.9, "unit": "s", "target": 1.0, "better": "lower", "ok": True,
             "spread": [0.8, 1.2]},
            {"name": "round", "value": None, "unit": "s", "target": 1.0, "better": "lower", "ok": False,
             "why": "too noisy"},
        ],
    }  # fmt: skip
    assert "seconds of a round" in table and "too noisy" in table and "0.8 - 1.2" in table


def test_a_report_reads_the_machine_when_it_is_made() -> None:
    """A new report has the cores that this process may use, and the load average."""
    report = Report("toy", quick=False)
    assert report.cores >= 1
    assert report.load_before >= 0
