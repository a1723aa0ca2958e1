"""Steps that strategies share, each a function on numbers or plain records, each tested against brute force.

`costs` what runs of units cost, `groups` the same of devices that share samples, `chains` the best chain of given
groups, `layers` and `hpp` the pure problem behind a fleet and a profile, `cut_clients` that of split learning, `top_k`
thinner links for any plan, `bound` what no plan can beat, `shortage` who lacks how many bytes, `finish` a plan with its
objective. Where to cut, how to deal samples and K of each segment are `fleetune.solving.hpp`'s. A base class with
hooks was set aside: it would tie every strategy to the shape of the first.

May import: fleetune.solving, fleetune.clock, fleetune.contracts, fleetune.errors, fleetune.planning.problem, numpy.
"""
