"""The pipeline and its command line; the only package that imports Prefect, and it does not import torch.

A run: `api.py` (Python) or `finetune.py` (Prefect flow) -> `runner.py` (each stage) -> `cache_policy.py` (reuse or run)
-> `attempt.py` (the stage's process); `tracking.py` keeps record and events.

Rejected: an engine of our own, because Prefect has scheduling,
retries and a user interface; and stages called in this process, because a stage must also run elsewhere.
"""

import fleetune  # noqa: F401 - before Prefect: see fleetune/library_sources.py
