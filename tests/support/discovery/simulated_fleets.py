"""Fleets of simulated devices."""

from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.fleet_request import FleetRequest
from fleetune.contracts.task import ignore_progress
from fleetune.discovery.discover import discover
from fleetune.launching import Command, Job, LocalSites

BOARD = {"memory_bytes": 4_000, "speeds": [{"flops_per_s": 1e9}]}
REQUEST: dict[str, Any] = {
    "devices": [{"name": "a", "simulated": BOARD}, {"name": "b", "simulated": {**BOARD, "memory_bytes": 8_000}}],
    "links": {
        "mbit_per_s": 100,
        "latency_s": 1e-3,
        "pairs": [{"source": "b", "target": "a", "mbit_per_s": 8}],
    },
}


class StartsNothing:
    """A launcher that nothing may ask."""

    def start(self, command: Command) -> Job:
        """Fail."""
        raise AssertionError(f"{command.module} was to be started")


def fleet_request(**changes: Any) -> FleetRequest:
    """Two simulated devices with a slower link back."""
    return json_io.load(FleetRequest, {**REQUEST, **changes}, "fleet")


def discovered(asked: FleetRequest) -> Fleet:
    """Discover the request with a launcher that can start nothing."""
    return discover(asked, LocalSites(StartsNothing()), ignore_progress, lambda sentence: None).fleet
