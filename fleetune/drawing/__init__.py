"""Plans, timelines, fleets and whole runs as text, SVG and HTML, for people.

`grid` and `plan_text` are text for terminals and golden files, `gantt` an SVG of timeline rows (forecast and measured
rows are drawn by the same function), `report` one self-contained HTML file: no link leaves it, it reads in light and
dark and on a narrow screen. A plotting library was set aside: its pictures need megabytes of code or pixels, and none
knows devices, links and micro-batches.

May import: fleetune.clock, fleetune.contracts, fleetune.errors, jinja2.
"""

from fleetune.drawing.content import ReportContent
from fleetune.drawing.gantt import gantt
from fleetune.drawing.grid import grid
from fleetune.drawing.plan_text import plan_text
from fleetune.drawing.report import report

__all__ = ["ReportContent", "gantt", "grid", "plan_text", "report"]
