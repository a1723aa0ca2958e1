"""The strategies, one file each; none imports another. `fleetune.planning.api` lists them.

May import: the other modules of fleetune.planning except `api`, and what those may.
"""
