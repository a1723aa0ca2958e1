"""SVG elements, a chart's canvas, the colours of all charts in light and dark, and labels of axes and timeline rows."""

import base64
import math
import re
from collections.abc import Sequence
from os.path import commonprefix
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.plan import SPELLING, Plan

WIDTH = 960
"""Width of every chart in its own units; the page scales it to the available width."""

STYLE = """
:root{--paper:#ffffff;--ink:#1d2430;--muted:#667085;--line:#e3e7ee;--soft:#f5f7fa;
--forward:#3b74d6;--backward:#e08a2c;--reduce:#8a5cc7;--update:#8a5a2b;--other:#8b95a5;--good:#23875b;--on:#ffffff;
--s0:#3b74d6;--s1:#e08a2c;--s2:#2f9e77;--s3:#8a5cc7;--s4:#cf4f6d;--s5:#2a93b0;--s6:#8c8a2f;--s7:#77808f}
@media (prefers-color-scheme:dark){:root{--paper:#12161d;--ink:#e6eaf1;--muted:#9aa5b6;--line:#2a323f;--soft:#1a202a;
--forward:#6a9cf0;--backward:#f0a95a;--reduce:#b18ae6;--update:#c99a66;--other:#7d8899;--good:#5cc597;--on:#10141a;
--s0:#6a9cf0;--s1:#f0a95a;--s2:#5cc597;--s3:#b18ae6;--s4:#ee8199;--s5:#62bfd8;--s6:#c4c25f;--s7:#9aa5b6}}
svg.chart{font:12px system-ui,-apple-system,"Segoe UI",sans-serif;display:block;width:100%;height:auto}
svg.chart text{fill:var(--ink)}
svg.chart .halo{stroke:var(--paper);stroke-width:8;stroke-linejoin:round;paint-order:stroke}
svg.chart .muted{fill:var(--muted)}svg.chart .on{fill:var(--on);font-size:10px}
svg.chart .rule{stroke:var(--line);stroke-width:1}svg.chart .soft{fill:var(--soft)}
svg.chart .F{fill:var(--forward)}svg.chart .B{fill:var(--backward)}
svg.chart .R{fill:var(--reduce)}svg.chart .U,svg.chart .A{fill:var(--update)}
svg.chart .O{fill:var(--other)}svg.chart .link{opacity:.72}
svg.chart .bar:hover{stroke:var(--ink);stroke-width:1.5}
svg.chart .held-out{fill:var(--backward);stroke:none}
svg.chart .curve{fill:none;stroke:var(--forward);stroke-width:2;stroke-linejoin:round}
svg.chart .area{fill:var(--forward);opacity:.1}svg.chart .node{fill:var(--forward)}
svg.chart .limit{stroke:var(--ink);stroke-width:2;stroke-dasharray:4 3}
svg.chart .edge{stroke:var(--muted);stroke-width:2.5}svg.chart .idle{stroke-width:1;opacity:.3}
svg.chart .coded{stroke:var(--reduce);stroke-dasharray:7 5}
""".strip()
SEGMENT_COLOURS = 8
MARGIN = 14
"""Margin of a chart that is an image of its own."""
BOX = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
TOOLTIP = re.compile(r"<title>[^<]*</title>")


def element(name: str, text: str = "", /, **attributes: object) -> str:
    """`<name ...>text</name>`. `text` is markup; in attribute names `_` stands for `-` and `class_` for class."""
    given = {key: _plain(value) for key, value in attributes.items() if value != ""}
    said = "".join(f" {key.rstrip('_').replace('_', '-')}={quoteattr(value)}" for key, value in given.items())
    return f"<{name}{said}>{text}</{name}>" if text else f"<{name}{said}/>"


def label(x: float, y: float, text: str, **attributes: object) -> str:
    """Draw text at a point."""
    return element("text", escape(text), x=x, y=y, **attributes)


def tooltip(text: str) -> str:
    """Add a tooltip to the enclosing element."""
    return element("title", escape(text))


def bar(x: float, y: float, size: tuple[float, float], hint: str, **attributes: object) -> str:
    """Draw a rectangle of `size` (width, height) with a tooltip."""
    return element("rect", tooltip(hint), x=x, y=y, width=max(size[0], 0.6), height=size[1], rx=2, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> str:
    """Draw a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def canvas(parts: list[str], height: float, name: str, width: float = WIDTH) -> str:
    """Return a complete chart; screen readers announce `name`."""
    return element(
        "svg",
        "".join(parts),
        class_="chart",
        viewBox=f"0 0 {_plain(width)} {_plain(height)}",
        role="img",
        aria_label=name,
        xmlns="http://www.w3.org/2000/svg",
    )


def standalone(chart: str) -> str:
    """Add the style sheet to a chart, so that it is a file of its own."""
    head, rest = chart.split(">", 1)
    return f"{head}><style>{STYLE}</style>{rest}"


def image_url(chart: str) -> str:
    """Return a chart as a data URL for pages that show images only: on paper of its own, without tooltips."""
    found = BOX.search(chart)
    assert found is not None, "a chart has a canvas"
    width, height = (float(side) + 2 * MARGIN for side in found.groups())
    sides = f'width="{_plain(width)}" height="{_plain(height)}"'
    size = f"svg.chart{{width:{_plain(width)}px;height:{_plain(height)}px}}"
    paper = f'<rect x="-{MARGIN}" y="-{MARGIN}" {sides} style="fill:var(--paper)"/>'
    head, rest = TOOLTIP.sub("", chart).split(">", 1)
    head = BOX.sub(f'viewBox="-{MARGIN} -{MARGIN} {_plain(width)} {_plain(height)}" {sides}', head)
    file = f"{head}><style>{STYLE}\n{size}</style>{paper}{rest}"
    return "data:image/svg+xml;base64," + base64.b64encode(file.encode()).decode()


def _plain(value: object) -> str:
    """Format an attribute; numbers have at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


SEVERAL = "var(--other)"
"""Colour of devices that run several segments or lanes, or none."""


def colour(number: int) -> str:
    """Return the colour of a number; colours repeat."""
    return f"var(--s{number % SEGMENT_COLOURS})"


def colour_of_segment(plan: Plan, lane: int, index: int) -> str:
    """Return the colour of a segment; with several lanes, the colour of its lane."""
    return colour(lane if len(plan.lanes) > 1 else index)


def colours_of_devices(plan: Plan) -> dict[str, str]:
    """Map each device with a segment to its colour, or to SEVERAL if it has segments of different colours."""
    found: dict[str, set[str]] = {}
    for at, lane in enumerate(plan.lanes):
        for index, segment in enumerate(lane.segments):
            for device in segment.devices:
                found.setdefault(device, set()).add(colour_of_segment(plan, at, index))
    return {device: min(colours) if len(colours) == 1 else SEVERAL for device, colours in found.items()}


def axis_ticks(until: float, most: int = 8) -> list[float]:
    """Axis ticks from 0 to `until`: at most `most` after 0, spaced by 1, 2 or 5 times a power of ten."""
    if until <= 0:
        return [0.0]
    exponent = math.floor(math.log10(until / most))
    steps_of_ten = (factor * 10.0**power for power in (exponent, exponent + 1) for factor in (1, 2, 5))
    step = next(step for step in steps_of_ten if until / step <= most)
    return [k * step for k in range(int(until / step + 1e-9) + 1)]


LETTER_NAMES = {"F": "forward", "B": "backward", "R": "all-reduce", "U": "update", "A": "average", "O": "other"}


class RowLabel(NamedTuple):
    """Letter (F, B, R, U, A, or O for other actions) and micro-batch of a timeline row."""

    letter: str
    micro_batch: int


def parse_label(row: TimelineRow) -> RowLabel:
    """Parse the letter and micro-batch from a row's action."""
    found = SPELLING.fullmatch(row.action)
    return RowLabel(found[3], int(found[4])) if found else RowLabel("O", 0)


def track_names(rows: Sequence[TimelineRow]) -> list[str]:
    """Names of devices in order of appearance, then of links."""
    names = list(dict.fromkeys(row.device for row in rows))
    return [n for n in names if ">" not in n] + [n for n in names if ">" in n]


def lane_names(rows: Sequence[TimelineRow]) -> list[str]:
    """Names of lanes, sorted by length and then name, so that client-2 precedes client-10."""
    return sorted({row.lane for row in rows}, key=lambda name: (len(name), name))


LONGEST_NAME = 40
"""Letters of a name that a chart shows; tooltips have all of them."""


def shortened(name: str, most: int = LONGEST_NAME) -> str:
    """Return a name, or the two of a link (`a>b`), without their middles where they have too many letters."""
    if len(name) <= most:
        return name
    ends = name.split(">")
    room = max(3, (most - len(ends) + 1) // len(ends))
    return ">".join(end if len(end) <= room else f"{end[: room // 2]}…{end[-((room - 1) // 2) :]}" for end in ends)


def short_names(names: Sequence[str]) -> list[str]:
    """Shorten names to their numbers (`client-1`, `client-12` to 1, 12); names without numbers are unchanged."""
    start = commonprefix(list(names)).rstrip("0123456789")
    numbers = [name.removeprefix(start) for name in names]
    return numbers if len(names) > 1 and all(map(str.isdigit, numbers)) else list(names)
