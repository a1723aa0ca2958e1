"""A run as one self-contained HTML file."""

from dataclasses import field, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fleetune import formatting
from fleetune.clock import forecast
from fleetune.clock.costs import memory_warnings
from fleetune.contracts.course import Course
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import (
    DeviceAmount,
    EvaluationMetrics,
    Forecast,
    LinkBytes,
    RoundMetrics,
    TrainingMetrics,
)
from fleetune.contracts.plan import LinkUse, PlanResult
from fleetune.contracts.profile import Profile
from fleetune.contracts.record import record
from fleetune.drawing.changes import last_refresh, moves_chart
from fleetune.drawing.charts import Amounts, amounts_chart, coded_pairs, fleet_chart, loss_chart, round_chart
from fleetune.drawing.course import course_chart, course_texts
from fleetune.drawing.gantt import Latencies, average_charts, latencies_of, queueing_text, round_charts
from fleetune.drawing.model_chart import gates_chart, model_chart
from fleetune.drawing.scores_text import scores_text
from fleetune.drawing.svg import STYLE, colour_of_segment
from fleetune.drawing.text import link_text, plan_text, trained_text, units_text
from fleetune.errors import Refused
from fleetune.formatting import size
from fleetune.program import program_of


@record
class ReportContent:
    """Everything a report shows of a run; training and evaluation are None if nothing was trained."""

    title: str
    fleet: Fleet
    profile: Profile
    plan: PlanResult
    forecast: Forecast
    training: TrainingMetrics | None = None
    evaluation: EvaluationMetrics | None = None
    """Given together with `training`, or not at all."""
    course: Course | None = None
    """Of a training that lost devices or messages; None for any other."""
    facts: dict[str, str] = field(default_factory=dict)
    """Label -> text of the list at the end: seed, digests, versions."""
    settings: str = ""
    """The run's config as YAML."""

    def __post_init__(self) -> None:
        if (self.training is None) != (self.evaluation is None):
            raise Refused("report: training and evaluation belong together; give both or none")


_PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_PAGES.filters.update(
    seconds=formatting.seconds,
    range=lambda interval: formatting.seconds_range(interval.low_s, interval.high_s),
    size=formatting.size,
    rate=formatting.rate,
    number=formatting.number,
    percent=formatting.percent,
)


def report(content: ReportContent) -> str:
    """Return the HTML page: scores, fleet, segments, timelines on one scale, loss, memory, links, citation, facts.

    Without training it shows only the forecast.
    """
    training = content.training
    refreshed = last_refresh(content.plan.plan, training.rounds, training.gates_from_round) if training else None
    latencies = latencies_of(content.fleet, content.profile)
    charts = {
        "fleet": fleet_chart(content.fleet, content.plan.plan, content.forecast.link_bytes),
        "model": model_chart(content.plan.plan, content.fleet, content.profile),
        "moves": moves_chart(content.plan.plan, _of_first_devices(training) if training else ()),
        "gates": gates_chart(content.plan.plan),
        "new_gates": gates_chart(refreshed[1]) if refreshed else "",
        "loss": loss_chart(training.rounds, training.scores) if training else "",
        "course": course_chart(content.course),
        "round": round_chart(content.forecast, training),
        "memory": amounts_chart(_memory(content), "memory of each device"),
        "links": amounts_chart(_links(content), "bytes of each link in a round"),
        **round_charts(content.plan.plan, latencies, content.forecast, training),
        **average_charts(content.plan.plan, content.forecast, training),
    }
    return _PAGES.get_template("report.html").render(
        content=content,
        style=Markup(STYLE),
        charts={name: Markup(chart) for name, chart in charts.items()},
        plan_text=plan_text(content.plan),
        programs=_programs(content),
        scores=scores_text(training) if training else [],
        recoveries=course_texts(content.course),
        segments=_segment_rows(content),
        uses=_uses(content),
        memory=_memory(content),
        beyond_memory=tuple(
            memory_warnings(
                content.fleet,
                _by_device(content.forecast.memory_bytes),
                _by_device(training.peak_memory_bytes) if training else {},
            )
        ),
        coded=bool(coded_pairs(content.plan.plan)),
        unused_compression=_unused_compression(content.plan),
        queues=_queues(content, latencies),
        of_other_plans=training is not None and not training.rounds_as_planned,
        refreshed_from=refreshed[0] if refreshed else None,
        sent=sum(link.bytes for link in content.forecast.link_bytes),
        profiled={t.device: t.profiling_s for t in content.profile.times if t.profiling_s is not None},
    )


def _uses(content: ReportContent) -> dict[tuple[str, str], str]:
    """Return how links are used that have a codec or a share; of those with a codec, with their bytes."""
    plan = content.plan.plan
    said = {(use.source, use.target): link_text(use) for use in plan.links if not use.is_neutral}
    if not coded_pairs(plan):
        return said
    sent, dense = (_by_ends(links) for links in (content.forecast.link_bytes, _dense_bytes(content)))
    for ends in said.keys() & sent.keys():
        if sent[ends] != dense.get(ends):
            said[ends] += f": {size(sent[ends])} a round, {size(dense.get(ends, 0))} if dense"
    return said


def _dense_bytes(content: ReportContent) -> tuple[LinkBytes, ...]:
    """Return what links would carry in a round without codecs."""
    plan = content.plan.plan
    dense = tuple(LinkUse(source=use.source, target=use.target, share=use.share) for use in plan.links)
    return forecast(replace(plan, links=dense), content.fleet, content.profile).link_bytes


def _unused_compression(plan: PlanResult) -> bool:
    """Return whether codecs were asked for and no link has one."""
    asked = ("compression", "compression_ratio")
    return any(plan.options.get(name) is not None for name in asked) and not coded_pairs(plan.plan)


def _of_first_devices(training: TrainingMetrics) -> tuple[RoundMetrics, ...]:
    """Return the rounds that the plan has trained, whichever blocks had moved."""
    return training.rounds[training.plan_from_round : training.replanned_from_round]


def _queues(content: ReportContent, latencies: Latencies) -> list[str]:
    """Return who waits where and for how long, by the forecast and as measured; empty without queues."""
    rows = {"forecast": queueing_text(content.forecast.rows, latencies)}
    rows |= {"measured": queueing_text(content.training.timeline)} if content.training else {}
    return [f"{name}: {line}" for name, text in rows.items() for line in text.splitlines()]


MOST_STEPS = 400
"""Steps of a device that a report lists."""


def _programs(content: ReportContent) -> list[str]:
    """Return the steps of each device, as far as a report lists them."""
    texts = []
    for own in program_of(content.plan.plan, content.profile):
        lines = str(own).splitlines()
        left = len(lines) - 1 - MOST_STEPS
        texts.append("\n".join([*lines[: MOST_STEPS + 1], *([f"  ... {left} more"] if left > 0 else [])]))
    return texts


def _segment_rows(content: ReportContent) -> list[dict[str, Any]]:
    """Return the rows of the table of segments."""
    return [
        {
            "name": f"{lane.name}/{index}",
            "colour": colour_of_segment(content.plan.plan, at, index),
            "units": units_text(segment),
            "devices": ", ".join(f"{share.device} ({share.samples})" for share in segment.shares),
            "trains": trained_text(segment) if segment.trains else "all",
            "warmup": segment.warmup,
            "params": sum(content.profile.unit(name).param_bytes for name in segment.units),
            "trained": sum(content.profile.unit(name).trainable_bytes for name in segment.trained),
        }
        for at, lane in enumerate(content.plan.plan.lanes)
        for index, segment in enumerate(lane.segments)
    ]


def _memory(content: ReportContent) -> list[Amounts]:
    forecast = _by_device(content.forecast.memory_bytes)
    measured = _by_device(content.training.peak_memory_bytes) if content.training else {}
    return [
        Amounts(
            name,
            forecast.get(name, 0.0),
            measured.get(name),
            content.fleet.device(name).memory_bytes,
        )
        for name in content.plan.plan.devices
    ]


def _links(content: ReportContent) -> list[Amounts]:
    forecast = _by_link(content.forecast.link_bytes)
    measured = _by_link(content.training.link_bytes) if content.training else {}
    if not measured:
        return [Amounts(name, count, None) for name, count in forecast.items()]
    return [Amounts(n, forecast.get(n, 0), measured.get(n, 0)) for n in dict.fromkeys((*forecast, *measured))]


def _by_device(amounts: tuple[DeviceAmount, ...]) -> dict[str, float]:
    return {one.device: one.amount for one in amounts}


def _by_ends(links: tuple[LinkBytes, ...]) -> dict[tuple[str, str], int]:
    return {(link.source, link.target): link.bytes for link in links}


def _by_link(links: tuple[LinkBytes, ...]) -> dict[str, int]:
    return {f"{link.source} > {link.target}": link.bytes for link in links}
