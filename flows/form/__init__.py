"""What people fill in when they start a run from Prefect's UI: flat parameters, and the run that they ask for.

(No postponed annotations here: flows that are served could not read their parameters.)
"""
