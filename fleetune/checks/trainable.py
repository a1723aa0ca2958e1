"""Features of plans that can be made, timed and drawn, but that workers do not run yet.

Fields with neutral values are no features, since ignoring them is correct.
"""

from collections.abc import Iterator

from fleetune.contracts.plan import Plan


def untrainable_features(plan: Plan) -> tuple[str, ...]:
    """Return what the plan has that no worker runs; empty if it can be trained."""
    return tuple(_features(plan))


def _features(plan: Plan) -> Iterator[str]:
    if len(plan.lanes) > 1 and not (plan.collector or plan.average_every_rounds):
        yield f"{len(plan.lanes)} lanes that nothing brings together (a collector, or average_every_rounds)"
