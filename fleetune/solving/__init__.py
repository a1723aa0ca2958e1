"""Planning problems as pure mathematics: a problem of numbers in, a plan of numbers out; what `fleetune solve` runs.

One folder per kind of problem, and one door for all: `read`, `solve`, `document`; `kinds()` lists what there is. A
problem knows no fleet, model or run: `fleetune.planning` turns those into one. Every method is deterministic by its
seed, and cites the paper it follows. One solver for all kinds was set aside: the problems share no mathematics beyond
their door.

May import: fleetune.clock, fleetune.contracts, fleetune.errors, numpy, numba, scipy, networkx, ortools, pydantic (types
of fields). No torch or files.
"""

from fleetune.solving.api import document, kinds, read, solve
from fleetune.solving.kind import Kind, Solved

__all__ = ["Kind", "Solved", "document", "kinds", "read", "solve"]
