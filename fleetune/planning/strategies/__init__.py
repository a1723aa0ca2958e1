"""The strategies, one file each; none imports another. `fleetune.planning.api` lists them.

May import: fleetune.planning.parts, fleetune.planning.papers, fleetune.planning.problem and what those may.
"""
