"""One file per strategy, beside its paper; none imports another. `fleetune.planning.solve` lists them.

May import: fleetune.planning.parts, fleetune.planning.problem and what those may.
"""
