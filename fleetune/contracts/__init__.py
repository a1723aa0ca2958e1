"""The records that pass between stages: fleet, profile, plan, timeline, metrics, checkpoint, and the run's config.

Frozen, slotted, keyword-only dataclasses that prove themselves when built (each its own ranges); relations
between records are checked in `fleetune.checks`. `wire.py` is the only door to and from JSON and YAML, with
pydantic behind it: plain classes inside, a strict parser at the edge. A bag of dicts was set aside because
every stage would have had to check it again.

May import: fleetune.errors only.
"""
