"""A run's config: one record per owner; `run.py` gathers them. Unknown keys are refused by name."""
