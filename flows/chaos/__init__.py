"""`fleetune chaos`: trains once as it is and once with faults drawn from a seed, and compares.

`schedule.py` draws the faults, `training.py` is the process that meets them, `rehearsal.py` runs both trainings, and
`comparison.py` tells whether they end alike.
"""
