"""Tables and lines that the commands print for people."""

import json
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fleetune.contracts.plan import PlanResult
from fleetune.errors import Refused
from fleetune.formatting import aligned_size, size
from fleetune.store import PromotionDecision, RunRecord, StageRecord, Store
from fleetune.store.runs import ENDED_BADLY

if TYPE_CHECKING:
    from fleetune.contracts.metrics import Interval
    from fleetune.store.garbage import Removal
    from flows.doctor import Finding
    from flows.past_runs import Results, RunDifference

STYLES = {
    **{
        "done": "green",
        "failed": "red",
        "refused": "red",
        "interrupted": "yellow",
        "stopped": "yellow",
        "running": "cyan",
    },
    **{"good": "green", "limited": "yellow", "missing": "red"},
}
RUN_COLUMNS = ("run", "kind", "state", "started", "took", "strategy", "stages")


def run_summary(run: RunRecord) -> dict[str, Any]:
    """A run in a list, as plain values."""
    return {
        "id": run.id,
        "name": run.config.name,
        "kind": run.kind,
        "state": run.state,
        "started": run.started,
        "ended": run.ended,
        "strategy": run.config.strategy.name,
        "error": run.error,
    }


def print_runs(console: Console, runs: Sequence[RunRecord]) -> None:
    """Print all runs: as a table if the ids fit, else with one line for the id and one for the rest."""
    cells = [_cells(run) for run in runs]
    for columns in (RUN_COLUMNS, [name for name in RUN_COLUMNS if name != "started"]):
        widths = [max(len(name), *(_least_width(name, row[name].plain) for row in cells)) for name in columns]
        if sum(widths) + 3 * len(widths) - 1 <= console.width:
            return console.print(_runs_table(cells, columns), soft_wrap=False)
    for row in cells:
        console.print(row.pop("run"))
        console.print(Padding(Text(", ").join(cell for cell in row.values() if cell), (0, 0, 0, 2)), soft_wrap=False)


def print_promotions(console: Console, promoted: Sequence[PromotionDecision], models: Sequence[str | None]) -> None:
    """Print promoted models: a line with the run and its scores, below it the folder of the model."""
    for one, model in zip(promoted, models, strict=True):
        start = f"from {one.start[:12]}" if one.start else "from the model of its config"
        console.print(Text(f"{one.name} {one.number}  {_local_time(one.decided)}  {one.run}"))
        facts = f"{one.checkpoint[:12]} {start}, data {one.data[:12]}, {one.why}"
        console.print(f"  {facts}")
        console.print(f"  {model or 'gone from the store'}")


def _least_width(column: str, text: str) -> int:
    """Width that a cell needs; only the column of stages is wrapped, and only between words."""
    return max(map(len, text.split()), default=0) if column == "stages" else len(text)


def _runs_table(rows: Sequence[dict[str, Text]], columns: Sequence[str]) -> Table:
    table = new_table(*columns)
    for column in table.columns:
        column.no_wrap = column.header != "stages"
    for row in rows:
        table.add_row(*(row[name] for name in columns))
    return table


def _cells(run: RunRecord) -> dict[str, Text]:
    """Cells of a run, by column."""
    said = {
        "run": run.id,
        "kind": run.kind,
        "started": _local_time(run.started),
        "took": _duration(run.started, run.ended),
        "strategy": run.config.strategy.name,
        "stages": _stages(run),
    }
    return {name: _state(run.state) if name == "state" else Text(said[name]) for name in RUN_COLUMNS}


def _stages(run: RunRecord) -> str:
    """Summary of the stages of a run: `1 reused, 2 ran, failed at plan`."""
    done = [stage.how for stage in run.stages if stage.state == "done"]
    counted = [f"{done.count(how)} {how}" for how in ("reused", "ran") if how in done]
    failed = next((f"failed at {stage.stage}" for stage in run.stages if stage.state == "failed"), None)
    return ", ".join([*counted, failed] if failed else counted)


def stages_table(run: RunRecord) -> Table:
    """Table of the stages of a run: reused or ran, in a dry run what would happen, and why."""
    planned = run.state == "planned"
    table = new_table("stage", "would" if planned else "state", "took", "why")
    for stage in run.stages:
        word, _, rest = stage.why.partition(": ")
        would = {"ran": "run", "reused": "be reused"}.get(stage.how, "")
        shown = Text(would) if planned else _state(stage.how if stage.how == "reused" else stage.state)
        table.add_row(stage.stage, shown, _duration(stage.started, stage.ended), stage.error or rest or word)
    return table


def print_run(console: Console, run: RunRecord, results: "Results | None") -> None:
    """Print a run: its state, its stages and its results."""
    took = _duration(run.started, run.ended)
    console.print(
        Text(f"{run.id}  ")
        .append(_state(run.state))
        .append(f"  {_local_time(run.started)}" + (f"  {took}" if took else ""))
    )
    console.print(stages_table(run))
    _print_results(console, results)
    if run.error and all(stage.error != run.error for stage in run.stages):  # else the table has it
        console.print(Text(run.error, style="red"))
    if run.state in ENDED_BADLY:
        again = f"fleetune rerun {run.id}"
        next_step = f"change what it says: {again} --set KEY=VALUE" if run.refused else f"go on with: {again}"
        console.print(f"{next_step} (fleetune show {run.id} STAGE names the log of a stage)")


def print_run_end(
    console: Console, run: RunRecord, found: "Results | PlanResult | None", plan_report: str = ""
) -> None:
    """Print the results of a run that has just ended, or its plan and the plan's report when it ended early."""
    if isinstance(found, PlanResult):
        from fleetune.drawing.text import plan_text  # brings the clock's compiler: only where a plan is shown

        console.print(plan_text(found).rstrip())
        if plan_report:
            console.print(f"report  {plan_report}")
    else:
        _print_results(console, found)
    console.print(f"run     {run.id}")


def failure_lines(store: Store, run: str) -> list[str]:
    """Lines that name a run and the log of its failed stage, if there are any."""
    from flows.past_runs import log_path

    if not run:
        return []
    try:
        failed = [stage for stage in store.runs.load(run).stages if stage.state == "failed"]
    except (Refused, OSError):  # a disk that took no record
        failed = []
    logs = [log for stage in failed if (log := log_path(store, stage))]
    return [f"run     {run}", *(f"log     {log}" for log in logs)]


def print_stage(console: Console, stage: StageRecord, answer: dict[str, Any]) -> None:
    """Print a stage: its state, its inputs, and every file of its outputs."""
    console.print(Text(f"{stage.stage}  ").append(_state(stage.state)).append(f"  {stage.why or stage.error}"))
    console.print(f"key     {stage.key}" if stage.key else "key     not known yet")
    if answer["log"]:
        console.print(f"log     {answer['log']}")
    for kind, digest in stage.inputs.items():
        console.print(f"reads   {kind} {digest}")
    for artifact in answer["artifacts"]:
        console.print(f"made    {artifact['kind']} in {artifact['folder']}")
        table = new_table("file", "bytes")
        table.columns[1].justify = "right"
        for file in artifact["files"]:
            table.add_row(file["path"], f"{file['bytes']:,}")
        console.print(table)


def print_difference(console: Console, difference: "RunDifference") -> None:
    """Print the differences between two runs side by side."""
    settings = new_table("setting", difference.first, difference.second)
    for setting in difference.settings:
        settings.add_row(setting.key, _value(setting.first), _value(setting.second))
    console.print(settings if difference.settings else "their configs are the same")
    stages = new_table("stage", "outputs", "why")
    for stage in difference.stages:
        stages.add_row(stage.stage, "same" if stage.same else "differ", stage.why)
    console.print(stages)
    scores = new_table("measured", difference.first, difference.second)
    for score in difference.scores:
        scores.add_row(score.name, _number(score.first), _number(score.second))
    if difference.scores:
        console.print(scores)


def findings_table(findings: Sequence["Finding"]) -> Table:
    """Table of the findings of `fleetune doctor`."""
    table = new_table("", "", "")
    table.show_header = False
    for finding in findings:
        table.add_row(finding.topic, _state(finding.state), finding.words)
    return table


def _range(interval: "Interval | None") -> str:
    """The interval of a forecast, to follow it; empty without one."""
    return f" ({interval.low_s:.3f} - {interval.high_s:.3f} s)" if interval is not None else ""


def _print_results(console: Console, results: "Results | None") -> None:
    if results is None:
        return
    metrics = results.metrics
    table = new_table(f"on {metrics.scored}", "before", "after")
    for score in metrics.scores:
        table.add_row(f"{score.name} ({score.better} is better)", _number(score.before), _number(score.after))
    console.print(table)
    table = new_table("each round", "forecast", "measured", "error")
    table.add_row(
        "time",
        f"{metrics.forecast_round_s:.3f} s{_range(metrics.forecast_interval)}",
        f"{metrics.measured_round_s:.3f} s",
        f"{metrics.forecast_error:+.1%}",
    )
    table.add_row("bytes sent", *_beside(metrics.forecast_bytes_per_round, metrics.bytes_per_round))
    forecast = {each.device: each.amount for each in metrics.forecast_memory_bytes}
    for peak in metrics.peak_memory_bytes:
        table.add_row(f"peak memory of {peak.device}", *_beside(forecast.get(peak.device, 0), peak.amount))
    if metrics.energy_j is not None:
        table.add_row("energy of the run", "", f"{metrics.energy_j:.0f} J", "")
    console.print(table)
    console.print(f"report  {results.report}")
    console.print(f"model   {results.model}")


def _beside(forecast_bytes: float, measured_bytes: float) -> tuple[str, str, str]:
    """Forecast, measurement and error, as far as they are known; a forecast of 0 is none, and where something was to be
    sent or held, so is a measurement of 0."""
    if measured_bytes <= 0 < forecast_bytes:
        return aligned_size(forecast_bytes), "-", ""
    known = forecast_bytes > 0
    said = aligned_size(forecast_bytes) if known else ""
    return said, aligned_size(measured_bytes), f"{forecast_bytes / measured_bytes - 1:+.1%}" if known else ""


def print_removal(console: Console, removal: "Removal") -> None:
    """Print what `fleetune gc` removed, or would, the runs that stay and why, and what it left alone."""
    counted = Counter(one.what for one in removal.removed)
    plural = {word: word if word.endswith(("s", "work")) else f"{word}s" for word in counted}
    named = [f"{many} {plural[word] if many > 1 else word}" for word, many in counted.items()]
    verb = "would free" if removal.dry_run else "freed"
    console.print(f"{verb} {size(removal.freed_bytes)}: {', '.join(named)}" if named else "nothing to remove")
    table = new_table("removed" if not removal.dry_run else "would remove", "", "size")
    for one in removal.removed:
        table.add_row(one.what, one.path, size(one.bytes))
    if removal.dry_run and removal.removed:
        console.print(table)
    kept = new_table("kept", "because it is")
    for run in removal.kept:
        kept.add_row(run.run, run.why)
    if removal.kept:
        console.print(kept)
    for left in removal.left:
        console.print(f"left alone: {left.path}: {left.why}")


def new_table(*headings: str) -> Table:
    """A table with these headings; long words are broken, not cut."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _state(state: str) -> Text:
    return Text(state, style=STYLES.get(state, ""))


def _local_time(moment: str) -> str:
    try:
        return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S}"
    except ValueError:  # a damaged record
        return moment


def _duration(started: str | None, ended: str | None) -> str:
    if not started or not ended:
        return ""
    try:
        return f"{(datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds():.1f} s"
    except (ValueError, TypeError):  # a damaged record
        return ""


def _value(value: Any) -> str:
    return "-" if value is None else json.dumps(value, ensure_ascii=False)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
