"""Steps that strategies share: functions on numbers and plain records, tested against brute force.

- `layers` and `hpp_problem`: a fleet and a profile as a problem of kind "hpp", and its solution as a plan
- `split_problem`: the same for kind "split"
- `run_costs`: seconds and bytes of runs of units on devices and groups; `chain_planner`: the best chain of given groups
- `requirements`: devices that take part, and error messages for what they lack
- `plan_result`: a plan with its round and lower bound; `top_k`: compression of the links of any plan

Cuts, sample allocation and warm-ups come from `fleetune.solving.hpp`. Strategies share functions, not a base class,
which would tie each of them to the shape of the first.

May import: fleetune.solving, fleetune.clock, fleetune.contracts, fleetune.errors, fleetune.planning.problem, numpy.
"""
