"""Checks whether a plan can run on a fleet, before anything is started.

Records validate their own fields; these checks validate relations between a plan, a fleet and a profile. `findings`
returns all faults, `validate` raises the first, `too_few_samples` yields one kind of them, and `untrainable_features`
names what workers do not run yet. Without them an unrunnable plan would fail on many machines at once.
"""

from fleetune.checks.findings import check_local_data, findings, untrainable_features, validate
from fleetune.checks.structure import too_few_samples

__all__ = ["check_local_data", "findings", "too_few_samples", "untrainable_features", "validate"]
