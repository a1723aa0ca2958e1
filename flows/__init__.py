"""The pipeline and its command line: everything that knows Prefect, and nothing that knows torch.

May import: stages and every package of fleetune. Rejected: an engine of our own, because Prefect already gives
scheduling, retries and a page to watch; and stages called in this process, because a stage must also run elsewhere.
"""
