"""How long a round of a plan takes, and what it does to links and memory, without running it.

The exact event simulation by which every plan is judged, ours or anybody's: tasks in order, one transfer per port,
link latency, ring all-reduce, on whole nanoseconds. `forecast(plan, fleet, profile)` is the door; `Clock` is the same
for a planner that asks about many plans. Chains of segments are played compiled (`pipeline.py`, `simulation.py`), all
else by the same rules in plain Python (`woven.py`, `events.py`).
A closed formula (Asteroid eq. (4)-(6)) was set aside as the judge: it is off by up to a third on uneven links.

May import: fleetune.contracts, fleetune.errors.
"""

from fleetune.clock.forecast import Clock, forecast
from fleetune.clock.memory import device_bytes
from fleetune.clock.pipeline import Member, Pipeline, Stage
from fleetune.clock.simulation import Simulation, simulate
from fleetune.clock.times import interpolate

__all__ = [
    "Clock",
    "Member",
    "Pipeline",
    "Simulation",
    "Stage",
    "device_bytes",
    "forecast",
    "interpolate",
    "simulate",
]
