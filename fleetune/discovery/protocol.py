"""What the stage and its agents say to each other.

An agent gets an AgentTask on stdin and answers over the links: `here` (its facts and address), then `ready` once it
has connected to the `peers` it was told, then `probed` for every `probe`; `ping` and `pong` are the probes themselves;
`end` ends it.
"""

import json
from dataclasses import field
from typing import NamedTuple

from fleetune.contracts import wire
from fleetune.contracts.record import record
from fleetune.discovery.facts import Facts
from fleetune.launching import Door

STAGE = "@discover"
"""The stage's name on the links; no device can be called so."""


@record
class AgentTask:
    """All that an agent is told at its start; it travels on stdin because it carries the agent's secret key."""

    run: str
    device: str
    accelerator: str
    public: bytes
    secret: bytes = field(repr=False)
    allowed: dict[str, bytes]
    """Public keys of the stage and of all devices."""
    stage_address: str
    door: Door
    """Where it listens, and for whom."""
    idle_s: float
    """An agent that hears nothing for so long ends by itself."""

    def line(self) -> bytes:
        """As the one line that goes to stdin."""
        return json.dumps(wire.dump(self)).encode()


@record
class Here:
    """An agent's first words."""

    address: str
    facts: Facts


@record
class Probe:
    """What to measure."""

    peer: str
    budget_s: float
    most_bytes: int
    """The largest payload that both ends have room for."""
    one_clock: bool = False
    """Whether both ends run on one machine, whose clock can then tell the way there from the way back."""


class Trip(NamedTuple):
    """One payload there and its small answer back."""

    round_trip_s: float
    sender_cpu_s: float
    """Processor time of the sender's whole process."""
    receiver_cpu_s: float
    back_s: float | None = None
    """Of `round_trip_s` what the answer took; None where no clock can tell."""


@record
class Probed:
    """Round trips as measured: `round_trips_s[i]` are the repeats for a payload of `sizes_bytes[i]`."""

    sizes_bytes: tuple[int, ...]
    round_trips_s: tuple[tuple[float, ...], ...]
    sender_cpu_s: tuple[tuple[float, ...], ...] = ()
    """Processor time that the sending agent's process spent on each of them; empty where nobody looked."""
    receiver_cpu_s: tuple[tuple[float, ...], ...] = ()
    """The same of the agent that answered."""
    back_s: tuple[float, ...] = ()
    """What the answers to empty payloads took; empty where no clock can tell."""
