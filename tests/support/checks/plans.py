"""Plans of several lanes on four devices."""

from dataclasses import replace

from fleetune.contracts.plan import LinkUse
from tests.support.clock import ticks
from tests.support.clock.ticks import segment

UNITS = [ticks.unit("u0", trained=100), ticks.unit("u1", trained=200), ticks.unit("u2", trained=400)]
NAMES = "x y h s"
PROFILE = ticks.profile(UNITS, {name: ([1, 1, 1], [1, 1, 1]) for name in NAMES.split()})
OWN = {name: f"{name}/0F0 {name}/2F0 {name}/2B0 {name}/0B0" for name in "xy"}
CLIENTS = {name: [segment("u0", name), segment("u1", "h"), segment("u2", name)] for name in "xy"}
SPLIT = ticks.plan(CLIENTS, orders={**OWN, "h": "x/1F0 y/1F0 x/1B0 y/1B0"})
"""Two clients and their helper."""
TUNED = replace(
    ticks.plan({"b0": [segment("u0 u1 u2", "x", trains="u2")], "b1": [segment("u0 u1 u2", "y", trains="u1")]}),
    links=(LinkUse(source="x", target="s", share=0.75), LinkUse(source="y", target="s", share=0.25)),
    collector="s",
)
"""Two devices that tune a part each, and a server."""
