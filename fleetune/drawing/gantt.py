"""Gantt charts of timelines: devices and links are tracks, work and transfers are bars.

At devices that work for several lanes, queueing is shown: from the arrival of a micro-batch to the start of its work.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from fleetune.clock.between_rounds import with_message_waits
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import Forecast, TimelineRow, TrainingMetrics
from fleetune.contracts.plan import BACKWARD, FORWARD, Action, Plan, parse_action
from fleetune.contracts.profile import Profile
from fleetune.contracts.record import record
from fleetune.drawing.svg import (
    LETTER_NAMES,
    SEGMENT_COLOURS,
    WIDTH,
    RowLabel,
    axis_ticks,
    bar,
    canvas,
    colour,
    label,
    lane_names,
    line,
    parse_label,
    short_names,
    shortened,
    standalone,
    track_names,
)
from fleetune.errors import Refused
from fleetune.formatting import seconds, size


@record
class Wait:
    """One micro-batch that has arrived at a device and waits for it."""

    device: str
    lane: str
    action: str
    """The forward or backward that it waits for."""
    arrived_s: float
    """When its last transfer has arrived, in seconds since the start of the round."""
    start_s: float

    @property
    def wait_s(self) -> float:
        """Seconds in the queue."""
        return self.start_s - self.arrived_s


Latencies = Mapping[str, float]
"""Link (`a>b`) -> seconds from the end of its row to the arrival, in forecasts; measured rows end at the arrival."""
ARRIVED: Latencies = MappingProxyType({})


def latencies_of(fleet: Fleet | None, profile: Profile | None) -> Latencies:
    """Return what a forecast's rows leave out, the waits for a processor at both ends included; nothing for an unknown
    fleet."""
    if fleet is None:
        return ARRIVED
    waiting = with_message_waits(fleet, profile) if profile else fleet
    return {f"{link.source}>{link.target}": link.latency_s for link in waiting.links}


def waits(rows: Sequence[TimelineRow], latencies: Latencies = ARRIVED) -> tuple[Wait, ...]:
    """Return the waits at devices that work for several lanes, by their starts.

    A micro-batch waits in a queue only while its device works at something else.
    """
    work = [(row, action) for row in rows if not row.is_transfer and (action := _work(row)) is not None]
    lanes: dict[str, set[str]] = {}
    worked_until_s = _worked_until_s(rows)
    for row, action in work:
        lanes.setdefault(row.device, set()).add(action.lane)
    arrived: dict[tuple[str, Action], float] = {}
    for row in rows:
        sent = _work(row) if row.is_transfer else None
        if sent is not None:
            key = (row.device.partition(">")[2], sent)
            arrived[key] = max(row.end_s + latencies.get(row.device, 0.0), arrived.get(key, 0.0))
    found = []
    for row, action in work:
        arrived_s = arrived.get((row.device, _sender(action)))
        if arrived_s is None or len(lanes[row.device]) < 2:
            continue
        if row.start_s > arrived_s and worked_until_s[id(row)] > arrived_s:
            found.append(
                Wait(device=row.device, lane=action.lane, action=row.action, arrived_s=arrived_s, start_s=row.start_s)
            )
    return tuple(sorted(found, key=lambda wait: (wait.arrived_s, wait.start_s, wait.action)))


def _worked_until_s(rows: Sequence[TimelineRow]) -> dict[int, float]:
    """Return id of a row of a device -> when the device had done all that it began before it."""
    ends_s: dict[str, float] = {}
    found: dict[int, float] = {}
    for row in sorted((row for row in rows if not row.is_transfer), key=lambda row: row.start_s):
        found[id(row)] = ends_s.get(row.device, 0.0)
        ends_s[row.device] = max(row.end_s, found[id(row)])
    return found


def queueing_text(rows: Sequence[TimelineRow], latencies: Latencies = ARRIVED) -> str:
    """Return a line per device with a queue: `queue at desk: laptop 213 ms, nano 301 ms`; empty without any."""
    totals: dict[str, dict[str, float]] = {}
    for wait in waits(rows, latencies):
        lanes = totals.setdefault(wait.device, {})
        lanes[wait.lane] = lanes.get(wait.lane, 0.0) + wait.wait_s
    return "\n".join(
        f"queue at {device}: {', '.join(f'{lane} {seconds(total_s)}' for lane, total_s in sorted(lanes.items()))}"
        for device, lanes in totals.items()
    )


def _work(row: TimelineRow) -> Action | None:
    """Return the forward or backward of a row; None for other rows."""
    try:
        action = parse_action(row.action)
    except Refused:
        return None
    return action if action.letter in (FORWARD, BACKWARD) else None


def _sender(action: Action) -> Action:
    """Return the action whose result this one waits for: of the segment before, or behind in a backward."""
    step = -1 if action.letter == FORWARD else 1
    return Action(lane=action.lane, segment=action.segment + step, letter=action.letter, micro_batch=action.micro_batch)


TRACK, BAR, TOP, BOTTOM = 24, 17, 30, 24
LETTER_WIDTH = 6.6
LIGHT = 0.62
"""Opacity of backwards if colours stand for lanes."""
QUEUE = "queue of {}"
"""Name of the track below a device that works for several lanes; what waits there is as thin as it has lanes."""


class _Stream(NamedTuple):
    """A lane of a timeline with several lanes."""

    number: int
    name: str
    short: str
    single: bool
    """True if the lane has only one micro-batch, whose number is then left out."""


def gantt(rows: Sequence[TimelineRow], title: str) -> str:
    """Draw the rows of one round as an SVG file, with a time axis and tooltips.

    Colours stand for forward, backward, all-reduce and update, or for lanes if there are several. A device that works
    for several lanes has a track below it with the micro-batches that have arrived and wait.
    """
    return standalone(gantt_chart(rows, title))


def gantt_chart(
    rows: Sequence[TimelineRow],
    title: str,
    *,
    until_s: float | None = None,
    order: Sequence[str] = (),
    streams: Sequence[str] = (),
    latencies: Latencies = ARRIVED,
) -> str:
    """Draw the same chart for a page that has the style sheet.

    `until_s`, `order` (track names) and `streams` (lane names) let several charts share scale, tracks and colours.
    """
    rows = tuple(rows)
    queued = waits(rows, latencies)
    queues = {QUEUE.format(wait.device) for wait in queued}
    names = _with_queues(dict.fromkeys((*order, *track_names(rows))), queued)
    until_s = until_s or max((row.end_s for row in rows), default=0.0) or 1e-9
    lanes = _streams(rows, streams)
    shown = {name: shortened(name) for name in names}
    left = 16 + LETTER_WIDTH * max(map(len, shown.values()), default=0)
    scale = (WIDTH - left - 12) / until_s
    top = TOP + 20 * (0 < len(lanes) <= SEGMENT_COLOURS)
    bottom = top + TRACK * len(names)
    parts = [label(0, 14, title, font_weight="600"), *_legend(_letters_used(rows, lanes))]
    parts += _legend(_lanes_used(lanes), y=20) if top > TOP else []
    for place, name in enumerate(names):
        y = top + TRACK * place
        if place % 2 == 0:
            parts.append(bar(0, y, (WIDTH, TRACK), name, class_="soft"))
        parts.append(label(4, y + 16, shown[name], class_="muted" if ">" in name or name in queues else ""))
    for tick_s in axis_ticks(until_s):
        x = left + tick_s * scale
        parts.append(line(x, top, x, bottom, class_="rule"))
        parts.append(label(x, bottom + 16, seconds(tick_s), class_="muted", text_anchor="middle"))
    for row in rows:
        parts += _bar(row, left + row.start_s * scale, top + TRACK * names.index(row.device), scale, lanes)
    for wait in queued:
        y = top + TRACK * names.index(QUEUE.format(wait.device))
        parts.append(_queued(wait, (left + wait.arrived_s * scale, y), scale, lanes))
    return canvas(parts, bottom + BOTTOM, title)


def _with_queues(names: Iterable[str], queued: Sequence[Wait]) -> list[str]:
    """Return the names of tracks, with the queue of a device below it."""
    queues = {wait.device: QUEUE.format(wait.device) for wait in queued}
    return [track for name in names for track in (name, *([queues[name]] if name in queues else []))]


def _queued(wait: Wait, at: tuple[float, float], scale: float, streams: dict[str, _Stream]) -> str:
    """Draw a wait in its lane's colour and row of the queue."""
    number = streams[wait.lane].number
    tall = (TRACK - 4) / len(streams)
    hint = f"{wait.action} waits for {wait.device}\n"
    hint += f"{seconds(wait.arrived_s)} to {seconds(wait.start_s)}, {seconds(wait.wait_s)}"
    size_ = (wait.wait_s * scale, max(1.0, tall - 1))
    return bar(at[0], at[1] + 2 + number * tall, size_, hint, class_="wait", style=f"fill:{colour(number)};opacity:.45")


class _Picture(NamedTuple):
    """Rows with their title."""

    title: str
    rows: tuple[TimelineRow, ...]
    latencies: Latencies = ARRIVED


def round_charts(
    plan: Plan, latencies: Latencies, forecast: Forecast, training: TrainingMetrics | None, *, transfers: bool = True
) -> dict[str, str]:
    """Draw the `forecast` and the `measured` timeline of a round with the same tracks and time scale.

    Empty where there are no rows. latencies: of the forecast. Without `transfers` only devices are drawn.
    """
    measured = _drawn(training.timeline if training else (), transfers)
    drawn = {
        "forecast": _Picture("forecast", _drawn(forecast.rows, transfers), latencies),
        "measured": _Picture("measured, a typical round", measured),
    }
    return _on_one_scale(plan, drawn)


def average_charts(plan: Plan, forecast: Forecast, training: TrainingMetrics | None) -> dict[str, str]:
    """Draw the `average` over lanes by the forecast and the `measured_average` alike; empty where there are none."""
    drawn = {
        "average": _Picture("an average, forecast", forecast.average),
        "measured_average": _Picture("an average, measured", training.average if training else ()),
    }
    return _on_one_scale(plan, drawn)


def _on_one_scale(plan: Plan, drawn: Mapping[str, _Picture]) -> dict[str, str]:
    """Draw rows with their titles, by the name of the chart."""
    rows = [row for each in drawn.values() for row in each.rows]
    until_s = max((row.end_s for row in rows), default=0.0)
    order = [*plan.devices, *sorted(name for name in track_names(rows) if ">" in name)]
    streams = [lane.name for lane in plan.lanes]
    shared: dict[str, Any] = {"until_s": until_s, "order": order, "streams": streams}
    return {
        name: gantt_chart(each.rows, each.title, latencies=each.latencies, **shared) if each.rows else ""
        for name, each in drawn.items()
    }


def _drawn(rows: Sequence[TimelineRow], transfers: bool) -> tuple[TimelineRow, ...]:
    return tuple(row for row in rows if transfers or not row.is_transfer)


def _streams(rows: tuple[TimelineRow, ...], order: Sequence[str]) -> dict[str, _Stream]:
    """Map lane names to lanes; empty if there is only one."""
    names = list(dict.fromkeys((*order, *lane_names(rows))))
    if len(names) < 2:
        return {}
    several = {row.lane for row in rows if parse_label(row).micro_batch > 0}
    shorts = short_names(names)
    return {n: _Stream(k, n, short, n not in several) for k, (n, short) in enumerate(zip(names, shorts, strict=True))}


def _bar(row: TimelineRow, x: float, y: float, scale: float, streams: dict[str, _Stream]) -> list[str]:
    shown, stream = parse_label(row), streams.get(row.lane)
    wide = (row.end_s - row.start_s) * scale
    y += (TRACK - BAR) / 2
    class_ = f"bar {shown.letter}{' link' * row.is_transfer}"
    hint, style = _hint(row, shown), _style(shown.letter, stream)
    parts = [bar(x, y, (wide, BAR), hint, class_=class_, style=style)]
    fitting = (text for text in _texts(shown, stream) if wide > LETTER_WIDTH * len(text) + 3)
    for text in list(fitting)[:1]:
        ink = "" if stream and shown.letter == "B" else "on"
        place = x + wide / 2, y + 12.5
        parts.append(label(*place, text, class_=ink, font_size=10, text_anchor="middle", pointer_events="none"))
    return parts


def _style(letter: str, stream: _Stream | None) -> str:
    """Style of a bar in its lane's colour, light for backwards; empty for all-reduces and updates."""
    if stream is None or letter not in "FBA":
        return ""
    return f"fill:{colour(stream.number)}" + (f";opacity:{LIGHT}" if letter == "B" else "")


def _texts(shown: RowLabel, stream: _Stream | None) -> list[str]:
    """Texts that a bar may show, longest first."""
    if shown.letter == "O":
        return []
    if stream is None:
        return [shown.letter if shown.letter in "RU" else str(shown.micro_batch)]
    what = shown.letter if shown.letter in "RU" else "" if stream.single else str(shown.micro_batch)
    names = dict.fromkeys((stream.name, stream.short))
    return [f"{name} {what}".strip() for name in names]


def _hint(row: TimelineRow, shown: RowLabel) -> str:
    what = f"{row.action} ({LETTER_NAMES[shown.letter]}) on {row.device}"
    when = f"{seconds(row.start_s)} to {seconds(row.end_s)}, {seconds(row.end_s - row.start_s)}"
    return f"{what}\n{when}" + (f"\n{size(row.bytes)}" if row.bytes else "")


class _Key(NamedTuple):
    """One entry of the legend."""

    words: str
    class_: str
    style: str = ""


def _letters_used(rows: tuple[TimelineRow, ...], streams: dict[str, _Stream]) -> list[_Key]:
    used = [letter for letter in LETTER_NAMES if any(parse_label(row).letter == letter for row in rows)]
    ink = "fill:var(--ink)"
    plain = {"F": ink, "A": ink, "B": f"{ink};opacity:{LIGHT / 2}"} if streams else {}
    return [_Key(LETTER_NAMES[letter], letter, plain.get(letter, "")) for letter in used]


def _lanes_used(streams: dict[str, _Stream]) -> list[_Key]:
    return [_Key(stream.name, "F", _style("F", stream)) for stream in streams.values()]


def _legend(keys: list[_Key], y: float = 0.0) -> list[str]:
    """Draw the legend of the colours in use, right-aligned; long names lose their middles where not all have room."""
    parts, x = [], float(WIDTH - 12)
    room = x - 32 * len(keys)
    most = int(room / LETTER_WIDTH / max(1, len(keys)))
    crowded = LETTER_WIDTH * sum(len(key.words) for key in keys) > room
    for key in reversed(keys):
        words = shortened(key.words, most) if crowded else key.words
        x -= LETTER_WIDTH * len(words) + 8
        parts.append(label(x, y + 14, words, class_="muted"))
        x -= 16
        parts.append(bar(x, y + 4, (11, 11), key.words, class_=key.class_, style=key.style))
        x -= 8
    return parts
