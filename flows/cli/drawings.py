"""Plans, fleets, profiles, metrics and event logs, drawn in a terminal.

`fleetune show RUN WHAT` draws one artifact, or one stage with its files.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console

from fleetune.contracts import json_io
from fleetune.contracts.fleet import LOCAL, Device, Fleet, Link
from fleetune.contracts.metrics import DeviceAmount, EvaluationMetrics, Interval, RoundMetrics
from fleetune.contracts.profile import DeviceTimes, Profile
from fleetune.errors import Refused
from fleetune.formatting import number, percent, rate, seconds, seconds_range, size
from fleetune.monitoring.event_log import BEATS, COMMITTED, DONE, Event
from fleetune.store import RunRecord, Store
from flows.artifact_content import (
    EVENTS,
    FLEET,
    METRICS,
    PLAN,
    PROFILE,
    Content,
    EventsContent,
    MetricsContent,
    PlanContent,
    producer,
    read_content,
)
from flows.cli import tables
from flows.cli.options import CommonOptions
from flows.cli.tables import new_table
from flows.past_runs import stage_document

LINKS, UNITS = 20, 10
"""Links and units that are listed at most."""
BAR, CURVE_WIDTH, CURVE_HEIGHT = 20, 72, 10
PLOTTED = "▁▂▃▄▅▆▇█"


def draw(console: Console, content: Content) -> None:
    """Draw one artifact."""
    if isinstance(content, PlanContent):
        _draw_plan(console, content)
    elif isinstance(content, Fleet):
        _draw_fleet(console, content)
    elif isinstance(content, Profile):
        _draw_profile(console, content)
    elif isinstance(content, MetricsContent):
        _draw_metrics(console, content)
    else:
        _draw_events(console, content)


def _draw_plan(console: Console, content: PlanContent) -> None:
    from fleetune.drawing.gantt import queueing_text
    from fleetune.drawing.text import plan_text, timeline_text  # brings the clock's compiler

    console.print(plan_text(content.plan).rstrip())
    if content.forecast is not None:
        width = max(40, min(console.width, 120) - 2 - max(len(row.device) for row in content.forecast.rows))
        drawn = timeline_text(content.forecast.rows, width).rstrip()
        console.print(f"\nforecast of one round{_range(content.forecast.interval)}\n{drawn}")
        if queues := queueing_text(content.forecast.rows):
            console.print(f"{queues} (with the latency of links)")


def _range(interval: Interval | None) -> str:
    """The interval of a forecast, to follow it: ` (1.2 s to 1.4 s)`; empty without one."""
    return f" ({seconds_range(interval.low_s, interval.high_s)})" if interval is not None else ""


def _draw_fleet(console: Console, fleet: Fleet) -> None:
    table = new_table("device", "cores", "threads", "memory", "computes on", "is")
    for device in fleet.devices:
        cores, memory = number(device.cores), size(device.memory_bytes)
        table.add_row(device.name, cores, str(device.threads), memory, device.computes_on, _kind(device))
    console.print(table)
    if not fleet.links:
        return
    if len({(link.bytes_per_s, link.latency_s) for link in fleet.links}) == 1:
        link = fleet.links[0]
        console.print(f"every link: {rate(link.bytes_per_s)}, {seconds(link.latency_s)}")
        return
    fastest_bytes_per_s = max(link.bytes_per_s for link in fleet.links)
    table = new_table("link, slowest first", "rate", "", "latency")
    for link in sorted(fleet.links, key=_slowness)[:LINKS]:
        bar = _bar(link.bytes_per_s / fastest_bytes_per_s)
        table.add_row(f"{link.source} > {link.target}", rate(link.bytes_per_s), bar, seconds(link.latency_s))
    console.print(table)
    if len(fleet.links) > LINKS:
        console.print(f"and {len(fleet.links) - LINKS} faster links")


def _slowness(link: Link) -> tuple[float, str, str]:
    return link.bytes_per_s, link.source, link.target


def _kind(device: Device) -> str:
    kind = "simulated" if device.simulated else "emulated" if device.emulated else "real"
    engine = "" if device.engine == LOCAL else f" on {device.engine}"
    return kind if device.simulated else f"{kind}, a {device.launcher}{engine}"


def _draw_profile(console: Console, profile: Profile) -> None:
    samples = profile.batch_sizes[-1]
    totals = {times.device: sum(_unit_s(times)) for times in profile.times}
    slowest_s = max(totals.values(), default=0.0) or 1.0
    console.print(f"{profile.model}: {len(profile.units)} units; times of {samples} samples, forward and backward")
    table = new_table("device", "whole model", "", "samples/s", "idle worker", "measured in")
    for times in profile.times:
        took = "simulated" if times.profiling_s is None else seconds(times.profiling_s)
        whole_s = totals[times.device]
        speed = number(samples / whole_s) if whole_s else "-"
        bar = _bar(whole_s / slowest_s)
        table.add_row(times.device, seconds(whole_s), bar, speed, size(times.runtime_bytes), took)
    console.print(table)
    _draw_units(console, profile)


def _draw_units(console: Console, profile: Profile) -> None:
    """Draw the slowest units, by their share of the model's time, averaged over the devices."""
    columns = [_unit_s(times) for times in profile.times]
    shares = [[unit_s / (sum(column) or 1.0) for unit_s in column] for column in columns]
    mean = [sum(row) / len(row) for row in zip(*shares, strict=True)] if shares else []
    slowest = sorted(range(len(mean)), key=lambda place: (-mean[place], place))[:UNITS]
    table = new_table("slowest units", "share", *(times.device for times in profile.times), "parameters", "activations")
    for place in slowest:
        unit = profile.units[place]
        own = (seconds(column[place]) for column in columns)
        table.add_row(
            unit.name, f"{mean[place]:.1%}", *own, size(unit.param_bytes), f"{size(unit.activation_bytes)} a sample"
        )
    rest = [place for place in range(len(mean)) if place not in slowest]
    if rest:
        share = f"{sum(mean[place] for place in rest):.1%}"
        own = (seconds(sum(column[place] for place in rest)) for column in columns)
        table.add_row(f"{len(rest)} others", share, *own, size(sum(profile.units[place].param_bytes for place in rest)))
    console.print(table)


def _unit_s(times: DeviceTimes) -> list[float]:
    """[unit] seconds of a forward and a backward at the largest batch size."""
    return [there[-1] + back[-1] for there, back in zip(times.forward_s, times.backward_s, strict=True)]


def _draw_metrics(console: Console, content: MetricsContent) -> None:
    from fleetune.drawing.scores_text import scores_text  # its package brings the clock's compiler

    training, forecast = content.training, content.forecast
    for line in (*loss_curve(training.rounds), *scores_text(training)):
        console.print(line)
    table = new_table("each round", "forecast", "measured", "error")
    measured_s = training.median_round_s
    if forecast is not None:
        foreseen = f"{seconds(forecast.round_s)}{_range(forecast.interval)}"
        table.add_row("time", foreseen, seconds(measured_s), _error(forecast.round_s, measured_s))
        if forecast.average:
            own_s = training.average_s
            error = _error(forecast.average_s, own_s) if own_s else ""
            every = f"average, every {forecast.average_every_rounds} rounds"
            table.add_row(every, seconds(forecast.average_s), seconds(own_s) if own_s else "-", error)
        sent = {(link.source, link.target): link.bytes for link in training.link_bytes}
        for link in forecast.link_bytes:
            own = sent.pop((link.source, link.target), 0)
            table.add_row(f"sent {link.source} > {link.target}", size(link.bytes), size(own), _error(link.bytes, own))
        for (source, target), own in sent.items():
            table.add_row(f"sent {source} > {target}", "-", size(own), "")
        _add_devices(table.add_row, "peak memory", forecast.memory_bytes, training.peak_memory_bytes, size)
        _add_devices(table.add_row, "busy", forecast.busy_s, training.busy_s, seconds)
    else:
        table.add_row("time", "-", seconds(measured_s), "")
    console.print(table)
    console.print(f"{len(training.rounds)} rounds; this attempt took {seconds(training.wall_s)}")
    if content.evaluation is not None:
        _draw_scores(console, content.evaluation)


def _add_devices(
    add_row: Callable[..., None],
    what: str,
    forecast: Sequence[DeviceAmount],
    measured: Sequence[DeviceAmount],
    shown: Callable[[float], str],
) -> None:
    own = {one.device: one.amount for one in measured}
    for one in forecast:
        found = own.get(one.device)
        said = ("-", "") if found is None else (shown(found), _error(one.amount, found))
        add_row(f"{what} of {one.device}", shown(one.amount), *said)


def _error(forecast: float, measured: float) -> str:
    if not measured:
        return ""
    error = round(forecast / measured - 1, 3)
    return percent(error or 0.0)  # no -0.0


def _draw_scores(console: Console, evaluation: EvaluationMetrics) -> None:
    table = new_table(f"on {evaluation.scored}", "before", "after", "change")
    for score in evaluation.scores:
        name = f"{score.name} ({score.better} is better)"
        table.add_row(name, f"{score.before:.4g}", f"{score.after:.4g}", f"{score.after - score.before:+.4g}")
    console.print(table)


def loss_curve(rounds: Sequence[RoundMetrics], width: int = CURVE_WIDTH, height: int = CURVE_HEIGHT) -> list[str]:
    """Lines of a plot of the loss over rounds: a column is the mean over its rounds, in eighths of a line."""
    if not rounds:
        return ["no round was trained"]
    width = min(width, len(rounds))
    edges = [len(rounds) * column // width for column in range(width + 1)]
    means = [
        sum(one.loss for one in rounds[first:end]) / (end - first) for first, end in zip(edges, edges[1:], strict=False)
    ]
    low, high = min(means), max(means)
    levels = [round((mean - low) / ((high - low) or 1.0) * (height * 8 - 1)) + 1 for mean in means]
    labels = {height - 1: f"{high:.4g}", 0: f"{low:.4g}"}
    margin = max(map(len, labels.values()))
    lines = [
        f"loss: {rounds[0].loss:.4g} in round {rounds[0].round}, {rounds[-1].loss:.4g} in round {rounds[-1].round}"
    ]
    for row in reversed(range(height)):
        cells = "".join(_cell(level - 8 * row) for level in levels)
        lines.append(f"{labels.get(row, ''):>{margin}} {cells}".rstrip())
    return lines


def _cell(eighths: int) -> str:
    return " " if eighths <= 0 else PLOTTED[min(eighths, 8) - 1]


def _draw_events(console: Console, content: EventsContent) -> None:
    summary = content.summary
    done = f"{summary.rounds_committed} of {summary.rounds_planned} rounds"
    how = "in order" if summary.ended == DONE else summary.ended if content.finished else "not ended"
    console.print(
        f"{done}; {how}" + (f"; {summary.unreadable_lines} unreadable lines" if summary.unreadable_lines else "")
    )
    for failure in summary.failures if content.finished else ():
        console.print(f"  {failure}")
    for recovery in summary.recoveries if content.finished else ():
        console.print(f"  recovery {recovery}")
    if not content.log:
        return
    began_s = content.log[0].at_s
    console.print(f"{datetime.fromtimestamp(began_s).astimezone():%Y-%m-%d %H:%M:%S}")
    table = new_table("after", "event", "device", "")
    for after_s, event, device, said in _event_rows(content.log):
        table.add_row(f"{after_s - began_s:.1f} s", event, device, said)
    console.print(table)
    silent = max(summary.memberships, key=lambda member: member.longest_silence_s, default=None)
    if silent is not None:
        console.print(f"longest silence: {seconds(silent.longest_silence_s)}, of {silent.device}")


def _event_rows(log: Sequence[Event]) -> Iterator[tuple[float, str, str, str]]:
    """Yield time, event, device and remark; rounds without other events between them are one row, beats none."""
    first: Event | None = None
    last: Event | None = None
    for event in (*log, None):
        if event is not None and event.event == BEATS:
            continue
        if event is not None and event.event == COMMITTED:
            first, last = first or event, event
            continue
        if first is not None and last is not None:
            said = f"round {first.round}" if first is last else f"rounds {first.round} to {last.round}"
            yield last.at_s, COMMITTED, "", said
            first = last = None
        if event is not None:
            said = event.reason or (f"{event.rounds} rounds planned" if event.rounds else "")
            yield event.at_s, event.event, event.device, said


def _bar(share: float) -> str:
    """A bar of up to BAR characters; never empty for a share above 0."""
    eighths = max(1, round(share * BAR * 8)) if share > 0 else 0
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")


KINDS = (PLAN, FLEET, PROFILE, METRICS, EVENTS)


def show_artifact(options: CommonOptions, store: Store, run: RunRecord, what: str) -> None:
    """Print the artifact or stage that `what` names. Refused: any other name; the error lists the allowed ones.

    `plan` and `profile` are names of both: the stage is shown, and its artifact drawn below.
    """
    stages = [stage.stage for stage in run.stages]
    if what not in KINDS and what not in stages:
        drawn = ", ".join(KINDS)
        raise Refused(f"run {run.id}: no stage {what!r}; it has {', '.join(stages)}; artifacts that are drawn: {drawn}")
    content, problem = _content(store, run, what, is_stage=what in stages)
    made = run.stage(what) if what in stages else producer(run, what)
    if options.as_json:
        document: dict[str, Any] = {} if made is None else stage_document(store, made)
        if what in KINDS:
            document["content"] = None if content is None else json_io.dump(content)
        options.print_json(document)
        return
    out = options.console()
    if what in stages:
        tables.print_stage(out, run.stage(what), stage_document(store, run.stage(what)))
    elif made is not None:
        out.print(f"{what} of {run.id}, made by its stage {made.stage} ({made.why})")
    else:
        out.print(f"{what} of {run.id}, which has not ended well")
    if content is not None:
        draw(out, content)
    elif problem:
        out.print(problem)


def _content(store: Store, run: RunRecord, what: str, *, is_stage: bool) -> tuple[Content | None, str]:
    """The content to draw, and the reason why a stage has none that can be read."""
    if what not in KINDS or (is_stage and what not in run.outputs):
        return None, ""
    try:
        return read_content(store, run, what), ""
    except Refused as error:
        if not is_stage:
            raise
        return None, f"cannot be drawn: {error}"
