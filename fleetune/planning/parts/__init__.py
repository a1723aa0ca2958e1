"""Steps that strategies share, each a function on numbers or plain records, each tested against brute force.

`costs` what runs of units cost, `allocation` samples dealt to a group, `cuts` where to cut, `warmup` K of each segment,
`bound` what no plan can beat, `shortage` who lacks how many bytes, `finish` a plan with its objective. A base class
with hooks was set aside: it would tie every strategy to the shape of the first.

May import: fleetune.clock, fleetune.contracts, fleetune.errors, fleetune.planning.problem, numpy.
"""
