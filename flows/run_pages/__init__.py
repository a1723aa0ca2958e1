"""What people see of a run in Prefect's UI: its overview, the history of its config, and the prediction of a dry run.

`overview` and `difference` make pages from what the store keeps, without Prefect; `publication` publishes them as
artifacts of the flow run. A page stays below 200 kB: an artifact of megabytes is refused by the server.
"""
