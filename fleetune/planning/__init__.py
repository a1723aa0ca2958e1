"""Which device does what: a problem in, a plan with its forecast and a bound out.

`solve(name, problem)` is the door; `strategies()` lists who can plan; `strategy.py` is what a strategy must answer.
One strategy per file in `strategies/`, none knows another; the steps they share are functions in `parts/`. Whatever a
strategy minimises inside, its plans are compared and reported by the clock. One planner with switches was set aside:
the published methods disagree about what a plan is for, and each stays readable beside its paper.

May import: fleetune.solving, fleetune.checks, fleetune.clock, fleetune.contracts, fleetune.errors, numpy. No torch,
files or clock time.
"""

from fleetune.planning.early import prove_request
from fleetune.planning.problem import Problem
from fleetune.planning.solve import solve, strategies
from fleetune.planning.strategy import Strategy

__all__ = ["Problem", "Strategy", "prove_request", "solve", "strategies"]
