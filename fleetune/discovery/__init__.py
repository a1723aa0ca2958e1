"""Which machines take part, what they are, how fast messages travel between them, and what those cost a processor.

May import errors, contracts, links and launching; torch only inside an agent that looks for an accelerator. One agent
process per device reports facts; then every directed link is probed alone, over the encrypted transport that training
uses; what is not as asked, where links are emulated, or not as an earlier run found it is looked at again. Set aside:
timing raw sockets, which are several times faster than what training will see; and probing several pairs at a time,
which disturb each other wherever devices share a machine.
"""

from fleetune.discovery.conversation import Limits
from fleetune.discovery.discover import discover
from fleetune.discovery.tolerance import same_devices, within_tolerance

__all__ = ["Limits", "discover", "same_devices", "within_tolerance"]
