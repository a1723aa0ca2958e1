"""Who takes part in a training right now, who has fallen silent, and a log of it that outlives the run.

May import errors and contracts. `Watch` decides from beats, `EventLog` is what training's stage writes, `follow` reads
it while it grows and sums it up. Set aside: asking devices from outside (a monitor would need keys and links of its
own, and would see less than the coordinator, whom the devices talk to anyway).
"""

from fleetune.monitoring.events import Event, EventLog
from fleetune.monitoring.follow import follow
from fleetune.monitoring.summary import EventSummary, Membership
from fleetune.monitoring.watch import Concern, Watch

__all__ = ["Concern", "Event", "EventLog", "EventSummary", "Membership", "Watch", "follow"]
