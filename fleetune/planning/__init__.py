"""Planning: assigns work to devices. Input is a problem; output is a plan with its forecast and a bound.

`solve(name, problem)` is the entry point and `strategies()` lists the strategies; `strategy` is their interface. Each
strategy is one file in `strategies/` and imports no other. The modules beside this one are what they share: functions,
not a base class, which would tie each strategy to the shape of the first.

- `layers` and `hpp_problem`: a fleet and a profile as a problem of kind "hpp", and its solution as a plan
- `split_problem`: the same for kind "split"
- `run_costs`: seconds and bytes of runs of units on devices and groups; `chain_planner`: the best chain of given groups
- `plan_result`: a plan with its round and lower bound; `top_k`: compression of the links of any plan

Cuts, sample allocation and warm-ups come from `fleetune.solving.hpp`. Strategies may minimise different objectives, but
all plans are compared by the clock's round time. A single planner with switches was rejected, because the published
methods disagree about the purpose of a plan, and each is easier to read beside its paper.

May import: fleetune.solving, fleetune.checks, fleetune.clock, fleetune.contracts, fleetune.errors, numpy. No torch,
files or clock time.
"""

from fleetune.planning.api import citations, solve, strategies, validate_request
from fleetune.planning.strategy import Problem, Strategy

__all__ = ["Problem", "Strategy", "citations", "solve", "strategies", "validate_request"]
