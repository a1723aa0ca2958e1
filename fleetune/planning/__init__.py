"""Planning: assigns work to devices. Input is a problem; output is a plan with its forecast and a bound.

`solve(name, problem)` is the entry point and `strategies()` lists the strategies; `strategy.py` is their interface.
Each strategy is one file in `strategies/` and imports no other; they share the functions in `parts/`. Strategies may
minimise different objectives, but all plans are compared by the clock's round time. A single planner with switches was
rejected, because the published methods disagree about the purpose of a plan, and each is easier to read beside its
paper.

May import: fleetune.solving, fleetune.checks, fleetune.clock, fleetune.contracts, fleetune.errors, numpy. No torch,
files or clock time.
"""

from fleetune.planning.api import citations, solve, strategies, validate_request
from fleetune.planning.problem import Problem
from fleetune.planning.strategy import Strategy

__all__ = ["Problem", "Strategy", "citations", "solve", "strategies", "validate_request"]
