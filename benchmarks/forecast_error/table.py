"""The table of forecast and measured rounds, and its figures."""

import statistics
from collections.abc import Sequence

from benchmarks.forecast_error.runs import CompletedRun, FailedRun, FleetCase
from benchmarks.report import Figure, Sheet

MEDIAN_ERROR, WORST_ERROR, BIAS, READY_S = 0.033, 0.10, 0.01, 5.0


def table(cases: Sequence[FleetCase], listed: Sequence[CompletedRun | FailedRun]) -> Sheet:
    """A row for every run of the list, failed ones included."""
    sheet = Sheet(
        title="Rounds on fleets of containers: forecast before training, and measured",
        columns=(
            "fleet",
            "plan",
            "forecast s",
            "interval s",
            "measured s",
            "rounds from - to",
            "error",
            "drift",
            "without it",
            "noise",
            "commit to commit s",
            "error",
            "load before",
            "ready s",
        ),
    )
    runs = [each for each in listed if isinstance(each, CompletedRun)]
    failed = [each for each in listed if isinstance(each, FailedRun)]
    for each in failed:
        sheet.rows.append((each.fleet, each.strategy, *[""] * 11, f"failed: {each.why}"))
    for ran in runs:
        sheet.rows.append(
            (
                ran.fleet,
                ran.strategy,
                f"{ran.forecast_s:.3f}",
                f"{ran.interval.low_s:.3f} - {ran.interval.high_s:.3f}" if ran.interval else "",
                f"{ran.median_s:.3f}",
                f"{min(ran.measured_s):.3f} - {max(ran.measured_s):.3f}",
                f"{ran.error:+.1%}",
                f"{ran.drift:+.1%}" if ran.drift is not None else "",
                f"{ran.error_without_drift:+.1%}" if ran.error_without_drift is not None else "",
                f"{ran.noise:.1%}" if ran.noise is not None else "",
                f"{ran.forecast_period_s:.3f} / {ran.period_s:.3f}" if ran.forecast_period_s else f"{ran.period_s:.3f}",
                f"{ran.period_error:+.1%}" if ran.forecast_period_s else "",
                f"{ran.load:.2f}",
                f"{ran.ready_s:.1f} ({ran.workers})",
            )
        )
    sheet.remarks = [f"{case.name}: {case.about}" for case in cases]
    sheet.remarks.append(
        "drift: of the forecast of the same plan, from the profile before its trainings to one after them"
    )
    sheet.remarks.append(
        "noise: how far median rounds of trainings of the same plan differ; more than two where the first disagree"
    )
    sheet.remarks.append("ready: seconds from start to the last worker's first message (workers that start at once)")
    sheet.figures = [*_errors(runs, failed), *_speedups(runs), _ready(runs)]
    return sheet


def _errors(runs: Sequence[CompletedRun], failed: Sequence[FailedRun]) -> list[Figure]:
    if failed or not runs:
        lost = ", ".join(f"{each.fleet}/{each.strategy}" for each in failed) or "all"
        why = f"runs of the list failed, and none may be left out: {lost}"
        names = ("forecast_error_median", "forecast_error_worst", "forecast_bias", "interval_coverage")
        return [Figure(name=name, value=None, unit="of measured", better="lower", why=why) for name in names]
    errors = [abs(ran.error) for ran in runs]
    worst = max(runs, key=lambda ran: abs(ran.error))
    return [
        Figure(
            name="forecast_error_median",
            value=statistics.median(errors),
            unit="of measured",
            target=MEDIAN_ERROR,
            better="lower",
            spread=(min(errors), max(errors)),
            about=f"over all {len(runs)} runs of the list",
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
            value=abs(statistics.mean(ran.error for ran in runs)),
            unit="of measured",
            target=BIAS,
            better="lower",
            spread=(min(ran.error for ran in runs), max(ran.error for ran in runs)),
            about=f"mean error {statistics.mean(ran.error for ran in runs):+.1%}; below 0: too short",
        ),
        _coverage(runs),
        *_without_drift(runs),
        *_noise(runs),
        *_periods(runs),
    ]


def _without_drift(runs: Sequence[CompletedRun]) -> list[Figure]:
    """Errors of the means of the forecasts from before and from after the trainings."""
    errors = [ran.error_without_drift for ran in runs if ran.error_without_drift is not None]
    drifts = [abs(ran.drift) for ran in runs if ran.drift is not None]
    if not errors:
        return []
    return [
        Figure(
            name="error_without_drift_median",
            value=statistics.median(map(abs, errors)),
            unit="of measured",
            better="lower",
            spread=(min(map(abs, errors)), max(map(abs, errors))),
            about=f"mean {statistics.mean(errors):+.1%}; forecasts by profiles from before and after, averaged",
        ),
        Figure(
            name="drift_median",
            value=statistics.median(drifts),
            unit="of forecast",
            better="lower",
            spread=(min(drifts), max(drifts)),
            about="between the profiles before and after the trainings of a plan, minutes apart",
        ),
    ]


def _noise(runs: Sequence[CompletedRun]) -> list[Figure]:
    """What no forecast can know: differences between trainings of the same plan."""
    known = [ran.noise for ran in runs if ran.noise is not None]
    if not known:
        return []
    return [
        Figure(
            name="noise_median",
            value=statistics.median(known),
            unit="of measured",
            better="lower",
            spread=(min(known), max(known)),
            about=f"between trainings of one plan, {len(known)} plans",
        )
    ]


def _periods(runs: Sequence[CompletedRun]) -> list[Figure]:
    """Errors of the forecast from commit to commit, where there is one."""
    errors = [ran.period_error for ran in runs if ran.forecast_period_s]
    if not errors:
        return []
    return [
        Figure(
            name="commit_to_commit_error_median",
            value=statistics.median(map(abs, errors)),
            unit="of measured",
            better="lower",
            spread=(min(errors), max(errors)),
            about=f"with commit and optimizer step; mean {statistics.mean(errors):+.1%}, below 0: too short",
        )
    ]


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


def _speedups(runs: Sequence[CompletedRun]) -> list[Figure]:
    """Measured speed-ups of `search`; the spread is that of its rounds against the other strategy's median."""
    figures = []
    by = {(ran.fleet, ran.strategy): ran for ran in runs}
    for (fleet, strategy), ran in by.items():
        ours = by.get((fleet, "search"))
        if ours is not None and strategy != "search":
            ratios = [ran.median_s / round_s for round_s in ours.measured_s]
            figures.append(
                Figure(
                    name=f"{fleet}_search_over_{strategy}",
                    value=ran.median_s / ours.median_s,
                    unit="x",
                    better="higher",
                    spread=(min(ratios), max(ratios)),
                    about=f"the forecast was {ran.forecast_s / ours.forecast_s:.2f} x",
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
