"""The table of forecast and measured rounds, and its figures."""

import statistics
from collections.abc import Sequence

from benchmarks.forecast_error.repeats import Repeats, grouped
from benchmarks.forecast_error.runs import CompletedRun, FailedRun, FleetCase
from benchmarks.report import Figure, Sheet

MEDIAN_ERROR, WORST_ERROR, BIAS, READY_S = 0.033, 0.10, 0.01, 5.0


COLUMNS = (
    "fleet",
    "plan",
    "runs",
    "forecast s",
    "interval s",
    "measured s",
    "rounds from - to",
    "error",
    "noise",
    "drift",
    "without it",
    "commit to commit s",
    "error",
    "load before",
    "ready s",
)


def table(cases: Sequence[FleetCase], listed: Sequence[CompletedRun | FailedRun]) -> Sheet:
    """A row for every strategy and fleet of the list, with the medians of its runs, and one for every failed run."""
    sheet = Sheet(title="Rounds on fleets of containers: forecast before training, and measured", columns=COLUMNS)
    runs = [each for each in listed if isinstance(each, CompletedRun)]
    failed = [each for each in listed if isinstance(each, FailedRun)]
    plans = grouped(runs)
    sheet.rows += [failed_row(each, len(COLUMNS)) for each in failed]
    sheet.rows += [_row(each) for each in plans]
    sheet.remarks = [f"{case.name}: {case.about}" for case in cases]
    sheet.remarks += [
        "a run is a profile, a plan and a training; of several, values are medians and the interval is the first one",
        "noise: how far the errors of the runs of one row differ, which no forecast explains",
        "drift: of the forecast of the same plan, from the profile before its training to the one after it",
        "ready: seconds from start to the last worker's first message (workers that start at once)",
    ]
    sheet.figures = [*_errors(plans, failed), *_speedups(plans), _ready(runs)]
    return sheet


def failed_row(failed: FailedRun, columns: int) -> tuple[str, ...]:
    """The row of a failed run, in a table of so many columns."""
    return (failed.fleet, failed.strategy, *[""] * (columns - 3), f"failed: {failed.why}")


def why_no_figure(failed: Sequence[FailedRun]) -> str:
    """Why a figure of all runs has no value."""
    lost = ", ".join(f"{each.fleet}/{each.strategy}" for each in failed) or "all"
    return f"runs of the list failed, and none may be left out: {lost}"


def _row(plan: Repeats) -> tuple[str, ...]:
    rounds_s = [each for run in plan.runs for each in run.rounds_s]
    interval = plan.runs[0].interval
    period_s, forecast_period_s = plan.median(lambda run: run.period_s), plan.median(lambda run: run.forecast_period_s)
    period_error = plan.known_median(lambda run: run.period_error)
    return (
        plan.fleet,
        plan.strategy,
        str(len(plan.runs)),
        f"{plan.median(lambda run: run.forecast_s):.3f}",
        f"{interval.low_s:.3f} - {interval.high_s:.3f}" if interval else "",
        f"{plan.median(lambda run: run.median_s):.3f}",
        f"{min(rounds_s):.3f} - {max(rounds_s):.3f}",
        _percent(plan.error, "+"),
        _percent(plan.noise),
        _percent(plan.known_median(lambda run: run.drift), "+"),
        _percent(plan.known_median(lambda run: run.error_without_drift), "+"),
        f"{forecast_period_s:.3f} / {period_s:.3f}" if period_error is not None else f"{period_s:.3f}",
        _percent(period_error, "+"),
        f"{plan.runs[0].load:.2f}",
        f"{plan.median(lambda run: run.ready_s):.1f} ({plan.runs[0].workers})",
    )


def _percent(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.1%}"


def _errors(plans: Sequence[Repeats], failed: Sequence[FailedRun]) -> list[Figure]:
    if failed or not plans:
        why = why_no_figure(failed)
        names = ("forecast_error_median", "forecast_error_worst", "forecast_bias", "interval_coverage")
        return [Figure(name=name, value=None, unit="of measured", better="lower", why=why) for name in names]
    runs = [run for plan in plans for run in plan.runs]
    signed = [plan.error for plan in plans]
    errors = [abs(error) for error in signed]
    worst = max(plans, key=lambda plan: abs(plan.error))
    bias = statistics.mean(signed)
    return [
        Figure(
            name="forecast_error_median",
            value=statistics.median(errors),
            unit="of measured",
            target=MEDIAN_ERROR,
            better="lower",
            spread=(min(errors), max(errors)),
            about=f"over all {len(plans)} of the list",
        ),
        Figure(
            name="forecast_error_worst",
            value=max(errors),
            unit="of measured",
            target=WORST_ERROR,
            better="lower",
            about=f"{worst.fleet}, {worst.strategy}",
        ),
        Figure(
            name="forecast_bias",
            value=abs(bias),
            unit="of measured",
            target=BIAS,
            better="lower",
            spread=(min(signed), max(signed)),
            about=f"mean error {bias:+.1%}; below 0: too short",
        ),
        *_single(runs, plans),
        _coverage(runs),
        *_without_drift(runs),
        *_noise(plans),
        *_periods(plans),
    ]


def _single(runs: Sequence[CompletedRun], plans: Sequence[Repeats]) -> list[Figure]:
    """Errors of single runs, as somebody sees who runs each once."""
    if len(runs) == len(plans):
        return []
    errors = [abs(run.error) for run in runs]
    worst = max(runs, key=lambda run: abs(run.error))
    about = f"over all {len(runs)} runs; the largest: {worst.fleet}, {worst.strategy}"
    return [_median("single_run_error_median", errors, about)]


def _median(name: str, values: Sequence[float], about: str, unit: str = "of measured") -> Figure:
    """The median of values without their sign, and their spread."""
    middle = statistics.median(map(abs, values))
    return Figure(name=name, value=middle, unit=unit, better="lower", spread=(min(values), max(values)), about=about)


def _without_drift(runs: Sequence[CompletedRun]) -> list[Figure]:
    """Errors of the means of the forecasts from before and from after the trainings."""
    errors = [ran.error_without_drift for ran in runs if ran.error_without_drift is not None]
    drifts = [abs(ran.drift) for ran in runs if ran.drift is not None]
    if not errors:
        return []
    return [
        _median(
            "error_without_drift_median",
            [abs(error) for error in errors],
            f"mean {statistics.mean(errors):+.1%}; forecasts by profiles from before and after, averaged",
        ),
        _median(
            "drift_median",
            drifts,
            "between the profiles before and after the trainings of a plan, minutes apart",
            unit="of forecast",
        ),
    ]


def _noise(plans: Sequence[Repeats]) -> list[Figure]:
    """What no forecast can know: differences between runs of the same strategy on the same fleet."""
    known = [plan.noise for plan in plans if plan.noise is not None]
    if not known:
        return []
    about = f"between the errors of the same run repeated, {len(known)} of the list"
    return [_median("noise_median", known, about)]


def _periods(plans: Sequence[Repeats]) -> list[Figure]:
    """Errors of the forecast from commit to commit, where there is one."""
    found = [plan.known_median(lambda run: run.period_error) for plan in plans]
    errors = [error for error in found if error is not None]
    if not errors:
        return []
    about = f"with commit and optimizer step; mean {statistics.mean(errors):+.1%}, below 0: too short"
    return [_median("commit_to_commit_error_median", errors, about)]


def _coverage(runs: Sequence[CompletedRun]) -> Figure:
    """Share of the runs whose median round lies within the interval of the forecast."""
    known = [(ran, ran.interval) for ran in runs if ran.interval is not None]
    if not known:
        why = "no forecast has an interval"
        return Figure(name="interval_coverage", value=None, unit="of runs", better="higher", why=why)
    widths = [(interval.high_s - interval.low_s) / ran.forecast_s for ran, interval in known]
    return Figure(
        name="interval_coverage",
        value=sum(interval.covers(ran.median_s) for ran, interval in known) / len(known),
        unit="of runs",
        better="higher",
        about=f"median width {statistics.median(widths):.0%} of the forecast",
    )


def _speedups(plans: Sequence[Repeats]) -> list[Figure]:
    """Measured speed-ups of `search`; the spread is that of its rounds against the other strategy's median."""
    figures = []
    by = {(plan.fleet, plan.strategy): plan for plan in plans}
    for (fleet, strategy), plan in by.items():
        ours = by.get((fleet, "search"))
        if ours is None or strategy == "search":
            continue
        median_s = plan.median(lambda run: run.median_s)
        ratios = [median_s / round_s for run in ours.runs for round_s in run.rounds_s]
        foreseen = plan.median(lambda run: run.forecast_s) / ours.median(lambda run: run.forecast_s)
        figures.append(
            Figure(
                name=f"{fleet}_search_over_{strategy}",
                value=median_s / ours.median(lambda run: run.median_s),
                unit="x",
                better="higher",
                spread=(min(ratios), max(ratios)),
                about=f"the forecast was {foreseen:.2f} x",
            )
        )
    return figures


def _ready(runs: Sequence[CompletedRun]) -> Figure:
    alone = [ran.ready_s for ran in runs if ran.workers == 1]
    if not alone:
        return Figure(name="worker_ready", value=None, unit="s", better="lower", why="no run had one worker alone")
    return Figure(
        name="worker_ready",
        value=statistics.median(alone),
        unit="s",
        target=READY_S,
        better="lower",
        spread=(min(alone), max(alone)),
        about="one worker's container, from its start to its first message",
    )
