"""Which machines take part, what they are, how fast messages travel between them, and what those cost a processor.

May import errors, contracts, links and launching; torch only inside an agent that looks for an accelerator. One agent
process per device reports facts; then every directed link is probed alone, over the encrypted transport that training
uses. Set aside: broadcasting (mDNS) to find machines, because a fleet is named by its file and must be reproducible;
and timing raw sockets, which are several times faster than what training will see.
"""

from fleetune.discovery.discover import Limits, discover
from fleetune.discovery.tolerance import within_tolerance

__all__ = ["Limits", "discover", "within_tolerance"]
