"""The `measurement` artifact: what discovery measured in one run, and how much other programs disturbed it.

The `fleet` of that run may be an earlier one (`fleetune.discovery.hysteresis` decides); the next run compares its own
measurement with this one.
"""

from fleetune.contracts.fleet import Fleet
from fleetune.contracts.record import record
from fleetune.discovery.machine_load import MachineLoad


@record
class LinkFit:
    """Fitted line of a link; `error` is the median relative distance of the sizes' times from it."""

    latency_s: float
    bytes_per_s: float
    error: float


@record
class LinkEvidence:
    """The probes of one link, and the load of the busier end's machine meanwhile."""

    source: str
    target: str
    lines: tuple[LinkFit, ...]
    """One for each probe."""
    load: MachineLoad


@record
class Measurement:
    """A fleet as one run measured it; `links` is empty for a simulated fleet."""

    fleet: Fleet
    links: tuple[LinkEvidence, ...] = ()
