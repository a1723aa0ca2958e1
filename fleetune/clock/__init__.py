"""The exact event simulation by which every plan is judged: a round's duration, timeline, link bytes and memory.

`forecast(plan, fleet, profile)` is the entry point; `Clock` does the same for planners that simulate many plans. Plans
are simulated in plain Python (`event_simulation`); where only the time of a chain of segments is asked for, the same
rules run compiled (`pipeline_simulation`).
Asteroid's closed formula (eq. (4)-(6)) was rejected as the judge: it is off by up to a third on uneven links.
"""

from fleetune.clock.averaging import describe_averages
from fleetune.clock.costs import device_bytes, interpolate
from fleetune.clock.forecast import Clock, forecast

__all__ = [
    "Clock",
    "describe_averages",
    "device_bytes",
    "forecast",
    "interpolate",
]
