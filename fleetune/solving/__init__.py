"""Planning problems as pure mathematics: a problem of numbers in, a plan of numbers out. `fleetune solve` runs it.

One folder per kind of problem, and one interface for all: `read`, `solve`, `document`, `kinds`. A problem knows no
fleet, model or run: `fleetune.planning` reduces those to one. Every method is deterministic by its seed, and cites the
paper it follows. Rejected alternative: one solver for all kinds; the problems share no mathematics.
"""

from fleetune.solving.api import Kind, Solved, document, read, solve
from fleetune.solving.d2ft import D2FT
from fleetune.solving.hpp import HPP
from fleetune.solving.lola_deft import DEFT
from fleetune.solving.opfence import OPFENCE
from fleetune.solving.split import SPLIT

__all__ = ["Kind", "Solved", "document", "kinds", "read", "solve"]


def kinds() -> dict[str, Kind]:
    """Return every kind by its name in problem files."""
    return {kind.name: kind for kind in (HPP, DEFT, SPLIT, D2FT, OPFENCE)}
