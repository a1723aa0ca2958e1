"""Records that pass between stages: fleet, profile, plan, timeline, metrics, stage tasks, and a run's config.

Records are frozen, slotted, keyword-only dataclasses that validate their own fields when built; `fleetune.checks`
validates relations between records. `json_io.py` alone converts between records and JSON, with pydantic as its strict
parser. Plain dicts were rejected because every stage would have to validate them again.
"""
