"""A comparison for people: its verdict, its tables as Markdown, its charts, and the page that the store keeps."""

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fleetune.contracts.metrics import DeviceAmount
from fleetune.contracts.record import record
from fleetune.drawing.charts import Amounts, Curve, amounts_chart, curves_chart
from fleetune.drawing.svg import image_url
from fleetune.formatting import listed, number, seconds, size
from flows.comparison.record import ComparedStrategy, Comparison, RoundFigures, within_noise
from flows.run_pages.page import Page, StoreLinks, page, picture, plain, unbroken
from flows.run_pages.page import table as markdown_table

NONE = "-"
_PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@record
class Table:
    """A table of text; its first row are the headings."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def verdict(comparison: Comparison) -> str:
    """The answer in one or two sentences: the fastest by the clock, and once trained the fastest by measurement."""
    planned, trained, reached = comparison.by_forecast, comparison.by_measurement, comparison.by_target
    if not planned:
        return "No strategy has a plan for these devices"
    said = f"By the clock {_fastest(comparison, planned, measured=False)}"
    trainable = tuple(row for row in planned if not row.untrainable)
    if trainable and trainable[0] not in comparison.level_with(planned[0], measured=False):
        said += f"; of those that can be trained here, {_fastest(comparison, trainable, measured=False)}"
    if trained:
        said += f". Measured, {_fastest(comparison, trained, measured=True)}"
    if reached and reached[0].target_s is not None and comparison.target_loss is not None:
        level = [row.name for row in reached if _as_early(reached[0], row)]
        said += f"; {listed(level)} {'was' if len(level) == 1 else 'were'} the first at loss "
        said += f"{number(comparison.target_loss)}, after {seconds(reached[0].target_s)}"
    return said


def _as_early(first: ComparedStrategy, row: ComparedStrategy) -> bool:
    """True for a strategy that reached the target when the first did, as far as the noise of their rounds can tell."""
    noises = [figures.noise for one in (first, row) if (figures := one.measured)]
    same = first.plan == row.plan != ""
    return same or within_noise(first.target_s or 0.0, row.target_s or 0.0, *noises)


def _fastest(comparison: Comparison, rows: tuple[ComparedStrategy, ...], measured: bool) -> str:
    """`single is the fastest (0.52 s a round, 1.3 times as fast as dp)`; no winner among those that noise, or nothing,
    tells apart."""
    first, figures = rows[0], rows[0].figures(measured)
    assert figures is not None, "only strategies with figures are ranked"
    level = [row for row in comparison.level_with(first, measured) if row in rows]
    said = f"{seconds(figures.round_s)} a round"
    slower = next((row for row in rows if row not in level), None)
    if slower is not None and (other := slower.figures(measured)) and (pace := slower.samples_per_s(other)):
        said += f", {first.samples_per_s(figures) / pace:.2f} times as fast as {slower.name}"
    names = listed([row.name for row in level])
    if len(level) == 1:
        return f"{names} is the fastest ({said})"
    if all(row.plan == first.plan != "" for row in level):
        return f"{names} have the same plan" + (f", and it is the fastest ({said})" if slower else f" ({said})")
    return f"{names} are equally fast, as far as {'their rounds tell' if measured else 'it tells'} ({said})"


def strategy_table(comparison: Comparison) -> Table:
    """A row per strategy: round, samples/s, bytes, the tightest device, and what was measured."""
    headings = (
        "strategy",
        "round",
        "samples/s",
        f"{comparison.rounds} round{'s' * (comparison.rounds != 1)}",
        "sent a round",
        "tightest memory",
    )
    if comparison.target_loss is None:
        return Table(headings=headings, rows=tuple(_forecast_cells(comparison, row) for row in comparison.strategies))
    target = f"to loss {number(comparison.target_loss)}"
    scores = {row.score.name for row in comparison.strategies if row.score}
    more = ("measured round", "measured sent", target, min(scores) if len(scores) == 1 else "score")
    rows = ((*_forecast_cells(comparison, row), *_measured_cells(row)) for row in comparison.strategies)
    return Table(headings=(*headings, *more), rows=tuple(rows))


def _forecast_cells(comparison: Comparison, row: ComparedStrategy) -> tuple[str, ...]:
    figures = row.forecast
    if figures is None:
        return row.name, NONE, NONE, NONE, NONE, NONE
    return (
        row.name,
        seconds(figures.round_s),
        number(row.samples_per_s(figures)),
        seconds(figures.round_s * comparison.rounds),
        size(figures.link_bytes),
        _tightest(comparison, figures),
    )


def _measured_cells(row: ComparedStrategy) -> tuple[str, ...]:
    figures = row.measured
    if figures is None:
        return NONE, NONE, NONE, NONE
    reached = NONE if row.target_s is None else seconds(row.target_s)
    score = f"{number(row.score.before)} → {number(row.score.after)}" if row.score else NONE
    return seconds(figures.round_s), size(figures.link_bytes), reached, score


def _tightest(comparison: Comparison, figures: RoundFigures) -> str:
    """`nano 81 %`: the device whose memory is fullest."""
    limits = {device.name: device.memory_bytes for device in comparison.devices}
    shares = [(one.amount / limits[one.device], one.device) for one in figures.memory_bytes if limits.get(one.device)]
    return f"{max(shares)[1]} {max(shares)[0]:.0%}".replace("%", " %") if shares else NONE


def memory_table(comparison: Comparison) -> Table:
    """A row per device: its memory, and the peak of each planned strategy, measured after its forecast."""
    rows = [row for row in comparison.strategies if row.forecast]
    devices = comparison.devices if rows else ()
    return Table(
        headings=("device", "memory", *(row.name for row in rows)),
        rows=tuple(
            (device.name, size(device.memory_bytes), *(_peaks(row, device.name) for row in rows)) for device in devices
        ),
    )


def _peaks(row: ComparedStrategy, device: str) -> str:
    forecast = _amount(row.forecast.memory_bytes, device) if row.forecast else None
    measured = _amount(row.measured.memory_bytes, device) if row.measured else None
    said = "not used" if forecast is None else size(forecast)
    return said if measured is None else f"{said}, measured {size(measured)}"


def _amount(amounts: tuple[DeviceAmount, ...], device: str) -> float | None:
    return next((one.amount for one in amounts if one.device == device), None)


def notes(comparison: Comparison) -> tuple[str, ...]:
    """A sentence for each strategy that has no plan, or that is not trained."""
    told = reasons([row for row in comparison.strategies if not row.same_as])
    told += [
        f"{row.name}: its plan is that of {row.same_as}, so that what is said and measured of one holds for both"
        for row in comparison.strategies
        if row.same_as
    ]
    samples = {row.samples for row in comparison.strategies if row.forecast}
    if len(samples) > 1:
        each = ", ".join(f"{row.name} {number(row.samples)}" for row in comparison.strategies if row.forecast)
        told.append(f"a round trains on different numbers of samples ({each}): compare samples/s")
    told += [
        f"{row.name}: its rounds and bytes have their part of the average of its lanes after every "
        f"{row.average_every_rounds} rounds (where none was measured, of the forecast's)"
        for row in comparison.strategies
        if row.forecast and row.average_every_rounds
    ]
    return tuple(told)


def reasons(rows: Sequence[ComparedStrategy]) -> list[str]:
    """`dp and pp: device a lacks 5 bytes`: a sentence for each reason, with all strategies that have it."""
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault(row.why, []).append(row.name)
    return [f"{listed(named)}: {why}" for why, named in names.items() if why]


def charts(comparison: Comparison) -> tuple[str, ...]:
    """SVG charts: seconds of a round for each strategy, and the loss over seconds where something was trained."""
    bars = [
        Amounts(row.name, row.forecast.round_s, row.measured.round_s if row.measured else None)
        for row in comparison.strategies
        if row.forecast
    ]
    curves = [Curve(row.name, [(point.seconds, point.loss) for point in row.losses]) for row in comparison.strategies]
    made = (
        amounts_chart(bars, "seconds of a round", seconds),
        curves_chart(curves, "loss over seconds of rounds", comparison.target_loss),
    )
    return tuple(chart for chart in made if chart)


def markdown(comparison: Comparison, links: StoreLinks) -> Page:
    """The comparison as the page of a flow run."""
    runs = ", ".join(f"{plain(row.name)} {links.run(row.run)}" for row in comparison.strategies if row.run)
    parts = (
        f"**{plain(verdict(comparison))}.**",
        _markdown_table(strategy_table(comparison)),
        *(picture(name, [chart]) for name, chart in zip(CHARTS, charts(comparison), strict=False)),
        _markdown_table(memory_table(comparison)),
        "\n".join(f"- {plain(note)}" for note in notes(comparison)),
        f"Runs: {runs}",
        links.comparison(comparison.id),
    )
    return page(parts, verdict(comparison))


CHARTS = ("seconds of a round", "loss over seconds")


def _markdown_table(table: Table) -> str:
    return markdown_table(table.headings, [[unbroken(plain(cell)) for cell in row] for row in table.rows])


def html_page(comparison: Comparison) -> str:
    """One self-contained page, readable from the store's folder and over HTTP."""
    return _PAGES.get_template("comparison.html").render(
        comparison=comparison,
        verdict=verdict(comparison),
        tables=[strategy_table(comparison), memory_table(comparison)],
        images=list(zip(CHARTS, map(image_url, charts(comparison)), strict=False)),
        notes=notes(comparison),
    )
