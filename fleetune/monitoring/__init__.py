"""Failure detection and the event log of a training, which outlives the run.

`FailureDetector` turns missing beats into suspicions, `EventLog` is written by the stage train, and `follow` reads it
while it grows and sums it up. Not used: polling devices (a monitor would need keys and links of its own, and would see
less than the coordinator, which the devices talk to anyway).
"""

from fleetune.monitoring.event_log import Event, EventLog
from fleetune.monitoring.event_summary import EventSummary, Membership, follow
from fleetune.monitoring.failure_detector import FailureDetector, SilenceRule, Suspicion

__all__ = ["Event", "EventLog", "EventSummary", "FailureDetector", "Membership", "SilenceRule", "Suspicion", "follow"]
