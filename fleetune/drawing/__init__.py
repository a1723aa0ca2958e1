"""Plans, timelines, fleets and whole runs as text, SVG and HTML, for people.

`plan_text` and `timeline_text` return text for terminals and golden files, `gantt` an SVG of forecast or measured
timeline rows, `report` one self-contained HTML file without external links, for light and dark themes and narrow
screens. Plotting libraries were rejected: their pictures need megabytes, and none draws links or micro-batches.
"""

from fleetune.drawing.gantt import gantt
from fleetune.drawing.report import ReportContent, report
from fleetune.drawing.text import plan_text, timeline_text

__all__ = ["ReportContent", "gantt", "plan_text", "report", "timeline_text"]
