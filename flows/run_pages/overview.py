"""The pages of a run: its overview, and the history of its config with a row for each of its runs, newest first."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from fleetune import formatting
from fleetune.contracts.metrics import Score
from fleetune.drawing.charts import fleet_chart, loss_chart
from fleetune.drawing.course import course_chart
from fleetune.drawing.gantt import latencies_of, round_charts
from fleetune.drawing.scores_text import scores_text
from fleetune.monitoring.event_log import DONE
from fleetune.store import RunRecord, StageRecord, Store
from fleetune.store.runs import COMPARISON, ENDED_BADLY, EVALUATION, ONLY, REHEARSAL, RUN
from flows import configs
from flows.next_step import command
from flows.past_runs import setting_differences
from flows.run_pages import difference
from flows.run_pages.page import Page, StoreLinks, code, page, picture, plain, table, unbroken
from flows.run_pages.run_content import RunContent, content_of, decisions, gain, result_of, round_seconds
from flows.tracking import reason

KIND_WORDS = {
    ONLY: "a single stage",
    EVALUATION: "an evaluation of an earlier run",
    COMPARISON: "part of a comparison",
    REHEARSAL: "part of a rehearsal of faults",
}


def overview(store: Store, run: RunRecord, base: RunRecord | None, links: StoreLinks) -> Page:
    """Return the page of a run as far as it has come; `base` is the run that it is compared with."""
    content = content_of(store, run)
    parts = [
        f"# {plain(configs.title(run.config))}",
        _state(run, links),
        _failure(run),
        *_results(content),
        _promotion(store, run),
        _links(run, links),
        "## Stages",
        _stages(run, links),
        *(difference.section(store, base, run, links) if base else ()),
        *_round(content),
        *_loss(content),
        *_fleet(content),
        *_events(content),
        _commands(store, run),
    ]
    return page(parts, _description(run, content))


def _description(run: RunRecord, content: RunContent) -> str:
    """The page in a line; how the run ended comes first unless it ended well."""
    said = "" if run.state in ("done", "running") else state_text(run)
    return ", ".join(filter(None, (said, content.headline))) or run.state


def state_text(run: RunRecord) -> str:
    """The state of a run in words: `done`, `failed at train`."""
    at = next((stage.stage for stage in run.stages if stage.state in ("failed", "stopped")), "")
    return f"{run.state} at {at}" if at and run.state in ENDED_BADLY else run.state


def _state(run: RunRecord, links: StoreLinks) -> str:
    when = f"started {moment(run.started)}"
    took = f", took {duration(run.started, run.ended)}" if run.ended else ""
    kind = "" if run.kind == RUN else f" ({KIND_WORDS[run.kind]})"
    return f"Run {links.run(run.id)}{kind}: **{plain(state_text(run))}**, {when}{took}."


def _failure(run: RunRecord) -> str:
    """The error of a run, and how to go on."""
    if not run.error:
        return ""
    return f"> **{plain(run.error)}**"


def _results(content: RunContent) -> Iterable[str]:
    """Scores before and after, and the round's forecast beside its measurement."""
    if content.evaluation is not None:
        headings = (f"on {content.evaluation.scored}", "before", "after", "change")
        yield table(headings, [_score(score) for score in content.evaluation.scores])
    if content.training is not None and content.training.rounds:
        measured_s = content.training.median_round_s
        said = f"A round took **{round_seconds(measured_s)}**"
        if content.forecast is not None and measured_s > 0:
            error = formatting.percent((content.forecast.round_s - measured_s) / measured_s)
            said += f"; its forecast was {round_seconds(content.forecast.round_s)} ({error})"
        yield f"{said}."
    elif content.forecast_round_s is not None:
        if content.so_far:
            round_ = content.so_far[-1]
            yield f"Round **{round_.round + 1}** of training, loss {formatting.number(round_.loss)}."
        yield f"The forecast of a round is **{round_seconds(content.forecast_round_s)}**."


def _score(score: Score) -> tuple[str, ...]:
    better = score.after > score.before if score.better == "higher" else score.after < score.before
    word = "" if score.after == score.before else ", better" if better else ", **worse**"
    values = (formatting.number(value) for value in (score.before, score.after))
    return (f"{plain(score.name)}", *values, f"{gain(score)}{word}")


def _links(run: RunRecord, links: StoreLinks) -> str:
    """Links to the report and to the model."""
    outputs, shown = run.outputs, []
    for kind, text in (("evaluation", "Report"), ("plan", "Report of the plan")):
        if kind in outputs:
            shown.append(links.file(text, kind, outputs[kind], "report.html"))
            break
    if "checkpoint" in outputs:
        shown.append("Model: " + links.artifact("checkpoint", outputs["checkpoint"]))
    return " · ".join(shown)


def _stages(run: RunRecord, links: StoreLinks) -> str:
    rows = [
        (
            f"**{plain(stage.stage)}**",
            plain(stage_state(stage)),
            unbroken(duration(stage.started, stage.ended)) if stage.how == "ran" else "",
            plain(stage.error or reason(stage.why)),
            " ".join(links.artifact(kind, digest) for kind, digest in stage.outputs.items()),
        )
        for stage in run.stages
    ]
    return table(("stage", "state", "took", "why", "made"), rows)


def stage_state(stage: StageRecord) -> str:
    """The state of a stage in a word; a reused one says so."""
    return "reused" if stage.state == DONE and stage.how == "reused" else stage.state


def _round(content: RunContent) -> Iterable[str]:
    """Pictures of a round: forecast, and beside it what was measured; without transfers where there are too many."""
    if content.plan is None or content.forecast is None:
        return
    plan, latencies = content.plan.plan, latencies_of(content.fleet, content.profile)
    drawn = [
        round_charts(plan, latencies, content.forecast, content.training, transfers=among) for among in (True, False)
    ]
    yield "## A round, forecast and measured" if drawn[0]["measured"] else "## A round, forecast"
    yield "Each track is a device or a link, each number a micro-batch."
    for name in ("forecast", "measured"):
        if drawn[0][name]:
            yield picture(f"{name} timeline of a round", [chart[name] for chart in drawn])


def _loss(content: RunContent) -> Iterable[str]:
    rounds = content.rounds
    if len(rounds) < 2:
        return
    yield "## Loss" if content.training is not None else "## Loss, so far"
    yield f"From {formatting.number(rounds[0].loss)} to {formatting.number(rounds[-1].loss)} in {len(rounds)} rounds."
    scores = content.training.scores if content.training is not None else ()
    if content.training is not None and scores:
        yield " ".join(scores_text(content.training))
    thinned = rounds[:: 1 + len(rounds) // 500]
    yield picture("loss by round", [loss_chart(rounds, scores), loss_chart(thinned, scores), loss_chart(thinned)])


def _fleet(content: RunContent) -> Iterable[str]:
    if content.fleet is None:
        return
    yield "## Fleet"
    if content.plan is not None:
        sent = content.forecast.link_bytes if content.forecast else ()
        yield picture("devices and links", [fleet_chart(content.fleet, content.plan.plan, sent)])
    peaks = {peak.device: peak.amount for peak in content.training.peak_memory_bytes} if content.training else {}
    used = content.plan.plan.devices if content.plan else ()
    rows = [
        (
            plain(device.name),
            formatting.number(device.cores),
            plain(device.computes_on),
            formatting.size(device.memory_bytes),
            *([formatting.size(peaks[device.name]) if device.name in peaks else ""] if peaks else []),
            *(["yes" if device.name in used else "no"] if used else []),
        )
        for device in content.fleet.devices
    ]
    headings = ("device", "cores", "accelerator", "memory", *(["peak"] if peaks else []))
    yield table((*headings, *(["in the plan"] if used else [])), rows)


def _events(content: RunContent) -> Iterable[str]:
    if content.events is None:
        return
    events = content.events
    yield "## Events"
    longest = max(events.memberships, key=lambda member: member.longest_silence_s, default=None)
    silence = ""
    if longest is not None:
        lasted = formatting.seconds(longest.longest_silence_s)
        silence = f"; the longest silence of a device lasted {lasted} ({plain(longest.device)})"
    yield f"{events.rounds_committed} of {events.rounds_planned} rounds were committed{silence}."
    if chart := course_chart(events.course):
        yield picture("rounds over time, and losses of devices", [chart])
    told = (*events.failures, *(f"recovery {each}" for each in events.recoveries))
    yield "\n".join(f"- {plain(sentence)}" for sentence in told) or "Nothing went wrong."


def _commands(store: Store, run: RunRecord) -> str:
    """Commands that look further, or go on."""
    commands = [command(store.root, ["show", run.id])]
    if run.state in ENDED_BADLY:
        commands.append(command(store.root, ["rerun", run.id, *(["--set", "KEY=VALUE"] if run.refused else [])]))
    return "On the command line: " + ", ".join(map(code, commands))


def _promotion(store: Store, run: RunRecord) -> str:
    """Whether the run's model was promoted, and why; empty while that is not decided."""
    decided = decisions(store, run.config.name).get(run.id) if run.config.promote is not None else None
    if decided is None:
        return ""
    return f"**{'Promoted' if decided.promoted else 'Not promoted'}**: {plain(decided.why)}."


def moment(when: str) -> str:
    """A time in this machine's time zone: `2026-11-22 10:58:25`."""
    return f"{datetime.fromisoformat(when).astimezone():%Y-%m-%d %H:%M:%S}"


def duration(started: str | None, ended: str | None) -> str:
    """Seconds between two times: `34.2 s`; empty while one of them is missing."""
    if not started or not ended:
        return ""
    return formatting.seconds((datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds())


MOST_RUNS = 50


def history(store: Store, run: RunRecord, links: StoreLinks) -> Page:
    """Return the page of all runs of the config of `run`; that one is shown as it is given, not as it is stored."""
    others = [other for other in store.runs.named(run.config.name) if other.id != run.id]
    runs = sorted([run, *others], key=lambda one: one.order, reverse=True)
    pairs = [(one, _before(runs[place + 1 :])) for place, one in enumerate(runs[:MOST_RUNS])]
    promoted = {name: decided.promoted for name, decided in decisions(store, run.config.name).items()}
    rows = [(*_row(store, one, before, links), _row_state(one, promoted)) for one, before in pairs]
    ended = {state: sum(one.state == state for one in runs) for state in ("done", *ENDED_BADLY, "running")}
    counted = ", ".join(f"{count} {state}" for state, count in ended.items() if count)
    headings = ("run", "kind", "when", "strategy", "changed", "score", "a round", "state")
    parts = [
        f"# Runs of {plain(run.config.name)}",
        table(headings, rows),
        f"{len(runs) - MOST_RUNS} earlier runs are not listed; fleetune runs lists them." if runs[MOST_RUNS:] else "",
    ]
    return page(parts, f"{len(runs)} runs: {counted}")


def _before(earlier: Sequence[RunRecord]) -> RunRecord | None:
    """The run that a row is compared with: the newest of the earlier ones that is not aside."""
    return next((run for run in earlier if not run.aside), None)


def _row(store: Store, run: RunRecord, before: RunRecord | None, links: StoreLinks) -> tuple[str, ...]:
    content = result_of(store, run)
    changed = difference.settings_text(setting_differences(before, run)) or "nothing" if before else "(the first run)"
    return (
        links.run(run.id),
        run.kind,
        moment(run.started),
        plain(run.config.strategy.name),
        plain(changed),
        _row_score(content),
        _row_round(content),
    )


def _row_state(run: RunRecord, promoted: Mapping[str, bool]) -> str:
    """The state of a run, and what was decided about its model."""
    decided = {name: ", promoted" if yes else ", not better" for name, yes in promoted.items()}
    return plain(state_text(run) + decided.get(run.id, ""))


def _row_score(content: RunContent) -> str:
    if content.score is None:
        return ""
    return plain(f"{content.score.name} {content.score.after:.3f} ({gain(content.score)})")


def _row_round(content: RunContent) -> str:
    if content.training is not None and content.training.rounds:
        return unbroken(round_seconds(content.training.median_round_s))
    forecast_s = content.forecast_round_s
    return f"{unbroken(round_seconds(forecast_s))} forecast" if forecast_s is not None else ""
