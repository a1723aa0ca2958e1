"""Plans and timelines as text, for terminals and golden files."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fleetune.contracts.link_codecs import DENSE, SPARSE
from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.plan import (
    FORWARD_ONLY,
    FULL,
    SKIP,
    Action,
    LinkUse,
    Plan,
    PlanResult,
    Segment,
    parse_action,
)
from fleetune.drawing.svg import lane_names, parse_label, track_names
from fleetune.formatting import number, seconds
from fleetune.program.lower import averaging_device

OPERATIONS = {FULL: "full", FORWARD_ONLY: "forward-only", SKIP: "skip"}
ADAPTER_PREFIX = "base_model.model."
"""What PEFT puts before the name of every module."""
_RUNS, _DIGITS = 3, 5
"""Runs of trained units that are written out, and minimum length of a folded run of actions; digits per group of a
gate."""


def plan_text(plan: Plan | PlanResult) -> str:
    """Return a plan as text.

    A headline; a line per segment with units, warm-up, trained units if not all, and samples per device; then
    compressed or shared links, the collector, backups, gates as a table of digits, and explicit orders.
    """
    core = plan.plan if isinstance(plan, PlanResult) else plan
    lines = [_headline(core) + (_times(plan) if isinstance(plan, PlanResult) else "")]
    lines += _segments(core)
    lines += _columns([(f"link {use.source}>{use.target}", link_text(use)) for use in core.links])
    if core.collector:
        lines.append(f"  collector {core.collector} (gradients in, new parameters out)")
    lines += _averages(core)
    lines += _backups(core)
    lines += _gates(core)
    lines += [f"  order of {order.device}: {' '.join(_folded(order.actions))}" for order in core.order]
    return "\n".join(lines) + "\n"


def _averages(plan: Plan) -> list[str]:
    if not plan.average_every_rounds:
        return []
    every = plan.average_every_rounds
    fewer = [f"{lane.name} {lane.rounds}" for lane in plan.lanes if lane.rounds]
    steps = f" (steps until then, fewer than others: {', '.join(fewer)})" if fewer else ""
    rounds = "every round" if every == 1 else f"every {every} rounds"
    return [f"  average of the lanes after {rounds}, on {averaging_device(plan)}{steps}"]


def _backups(plan: Plan) -> list[str]:
    if not plan.backup_every_rounds:
        return []
    every = plan.backup_every_rounds
    held = ", ".join(f"{each.lane}/{each.segment} on {each.holder}" for each in plan.backups)
    rounds = "every round" if every == 1 else f"every {every} rounds"
    return [f"  snapshots {rounds}" + (f", backups of {held}" if held else "")]


def units_text(segment: Segment) -> str:
    """Return the span of a segment's units, and whether it recomputes activations."""
    return span_text(segment.units) + (" (activations recomputed)" if segment.recompute else "")


def span_text(units: Sequence[str]) -> str:
    """Format a range of units: `embed .. layer.3 (5 units)`."""
    return f"{_span(units)} ({_count(len(units), 'unit')})"


def trained_text(segment: Segment) -> str:
    """Format the trained units of a segment as ranges: `u1 .. u3, u5 (4 units)`."""
    runs: list[list[str]] = []
    before = -2
    for place, name in enumerate(segment.units):
        if name in segment.trained:
            if place > before + 1:
                runs.append([])
            runs[-1].append(name)
            before = place
    spans = ", ".join(_span(run) for run in runs[:_RUNS]) + (", ..." if len(runs) > _RUNS else "")
    return f"{spans} ({_count(len(segment.trained), 'unit')})"


def link_text(use: LinkUse) -> str:
    """Format the use of a link: `top-k 1/100, 0.25 of the medium`."""
    thinned = f" 1/{number(use.ratio)}" if use.codec in SPARSE else ""
    said = [] if use.codec == DENSE else [use.codec + thinned + (" with feedback" if use.feedback else "")]
    said += [f"{number(use.share)} of the medium"] if use.share != 1.0 else []
    return ", ".join(said) or "dense and whole"


def operations_text(operations: str) -> str:
    """Format a gate's digits in groups of five: `11223 11223`."""
    return " ".join(operations[k : k + _DIGITS] for k in range(0, len(operations), _DIGITS))


def _folded(actions: Sequence[str]) -> Iterator[str]:
    """Fold runs of consecutive micro-batches: `a/0F0..3 a/2F0 a/2B0`."""
    run: list[Action] = []
    for action in map(parse_action, actions):
        if run and action != replace(run[-1], micro_batch=run[-1].micro_batch + 1):
            yield from _run(run)
            run = []
        run.append(action)
    yield from _run(run)


def _run(run: Sequence[Action]) -> list[str]:
    return [f"{run[0]}..{run[-1].micro_batch}"] if len(run) >= _RUNS else [str(action) for action in run]


def _headline(plan: Plan) -> str:
    each = f"{_count(plan.micro_batches, 'micro-batch')} of {_count(plan.micro_batch_samples, 'sample')}"
    fewer = [f"{lane.name} {lane.micro_batches}" for lane in plan.lanes if lane.micro_batches]
    less = f" (fewer: {', '.join(fewer)})" if fewer else ""
    if len(plan.lanes) == 1:
        return f"{plan.strategy}: {each}{less}"
    return f"{plan.strategy}: {len(plan.lanes)} lanes of {each}{less}"


def _times(result: PlanResult) -> str:
    said = f", a round takes {seconds(result.objective)}"
    if result.lower_bound is not None:
        said += f" (its bound: {seconds(result.lower_bound)})"
    return said


def _segments(plan: Plan) -> list[str]:
    partly = any(segment.trains for lane in plan.lanes for segment in lane.segments)
    rows = []
    for lane in plan.lanes:
        for index, segment in enumerate(lane.segments):
            trains = (f"trains {trained_text(segment)}" if segment.trains else "trains all",) if partly else ()
            shares = ", ".join(f"{share.device} {share.samples}" for share in segment.shares)
            rows.append((f"{lane.name}/{index}", units_text(segment), f"warm-up {segment.warmup}", *trains, shares))
    return _columns(rows)


def _gates(plan: Plan) -> Iterator[str]:
    if not plan.gates:
        return
    every = "".join(gate.operations for gate in plan.gates)
    parts = (f"{digit} {word} {every.count(digit) / len(every):.0%}" for digit, word in OPERATIONS.items())
    untrained = sum(all(gate.operations[m] != FULL for gate in plan.gates) for m in range(plan.micro_batches))
    left = f"; {_count(untrained, 'micro-batch')} trained by none" if untrained else ""
    yield f"  gates, a digit per micro-batch: {', '.join(parts)}".replace("%", " %") + left
    for line in _columns([(gate.subnet, operations_text(gate.operations)) for gate in plan.gates]):
        yield "  " + line


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows in columns; the last column is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    padded = ([*(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)), row[-1]] for row in rows)
    return ["  " + "  ".join(cells) for cells in padded]


def unit_text(name: str) -> str:
    """Format a unit's name, without what adapters put before every name."""
    return name.removeprefix(ADAPTER_PREFIX)


def _span(units: Sequence[str]) -> str:
    first, last = unit_text(units[0]), unit_text(units[-1])
    return first if len(units) == 1 else f"{first} .. {last}"


def _count(many: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{many} {what if many == 1 else plural}"


_NAMED_LANES = 10


def timeline_text(rows: Sequence[TimelineRow], width: int = 80) -> str:
    """Draw the rows of one round over `width` columns of equal time, with a legend below.

    Signs stand for micro-batches, or for lanes if there are several. A column shows what runs at its middle; a row too
    short for that takes the column of its start if it is free.
    """
    rows = tuple(rows)
    if not rows:
        return "(nothing ran)\n"
    until_s = max(row.end_s for row in rows) or 1e-9
    names, streams = track_names(rows), lane_names(rows)
    margin = max(len(name) for name in names)
    lines = []
    for name in names:
        mine = [(row, _sign(row, streams)) for row in rows if row.device == name]
        cells = _timeline_cells(mine, width, until_s)
        lines.append(f"{name:>{margin}} {cells}")
    scale = f"{'':>{margin}} 0{seconds(until_s):>{width - 1}}"
    return "\n".join([scale, *lines, f"{'':>{margin}} {_timeline_legend(rows, streams)}"]) + "\n"


def _timeline_cells(rows: list[tuple[TimelineRow, str]], width: int, until_s: float) -> str:
    cells = ["."] * width
    unseen = []
    for row, sign in rows:
        first = int(row.start_s / until_s * width + 0.5)
        end = int(row.end_s / until_s * width + 0.5)
        if end > first:
            cells[first:end] = sign * (end - first)
        else:
            unseen.append((row, sign))
    for row, sign in unseen:
        place = min(int(row.start_s / until_s * width), width - 1)
        if cells[place] == ".":
            cells[place] = sign
    return "".join(cells)


def _sign(row: TimelineRow, streams: list[str]) -> str:
    letter, micro_batch = parse_label(row)
    number = (streams.index(row.lane) if len(streams) > 1 else micro_batch) % 10
    signs = {"F": str(number), "B": "abcdefghij"[number], "R": "=", "U": "^"}
    return signs.get(letter, "*")


def _timeline_legend(rows: tuple[TimelineRow, ...], streams: list[str]) -> str:
    what, which = "a micro-batch", ""
    if len(streams) > 1:
        what = "a lane"
        if len(streams) <= _NAMED_LANES:
            which = " (" + ", ".join(f"{number} {name}" for number, name in enumerate(streams)) + ")"
    digit = which or " (its last digit)"
    update = ", ^ update" if any(parse_label(row).letter == "U" for row in rows) else ""
    return f"0-9 forward of {what}{digit}, a-j its backward (a is 0), = all-reduce{update}, * other, . idle"
