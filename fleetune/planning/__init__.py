"""Planning: assigns work to devices. Input is a problem; output is a plan with its forecast and a bound.

`solve(name, problem)` is the entry point and `strategies()` lists them; `strategy` is their interface. Each is
one file in `strategies/` and imports no other; the modules beside `api` are functions that they share. A base class was
rejected, which would tie each strategy to the shape of the first, and so was a single planner with switches, because
the published methods disagree about the purpose of a plan. Strategies may minimise different objectives, but all plans
are compared by the clock's round time.
`fleetune.solving` solves the mathematical problems; planning reads no files and no time of day.
"""

from fleetune.planning.api import citations, solve, strategies, validate_request
from fleetune.planning.strategy import Problem, Strategy

__all__ = ["Problem", "Strategy", "citations", "solve", "strategies", "validate_request"]
