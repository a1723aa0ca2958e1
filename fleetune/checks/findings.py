"""All that keeps a plan from running, gathered from the rooms' small proofs."""

from collections.abc import Iterator

from fleetune.checks.links import crossed_by_nothing, given_away_twice
from fleetune.checks.memory import over_memory
from fleetune.checks.order import misordered, stuck
from fleetune.checks.structure import cut_where_none_may_be, units_at_fault, unknown
from fleetune.checks.trained import gradients_cut_off, nothing_to_train
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import Plan
from fleetune.contracts.profile import Profile
from fleetune.errors import Infeasible, Refused


def findings(plan: Plan, fleet: Fleet, profile: Profile) -> tuple[str, ...]:
    """One sentence per fault; empty where the plan can run on this fleet by this profile.

    Later proofs rest on earlier ones: a plan with unknown devices or units is judged no further.
    """
    return tuple((*_malformed(plan, fleet, profile), *_infeasible(plan, fleet, profile)))


def prove(plan: Plan, fleet: Fleet, profile: Profile) -> None:
    """Raise the first finding: Infeasible where memory is short, Refused for everything else."""
    for finding in _malformed(plan, fleet, profile):
        raise Refused(f"plan: {finding}")
    for finding in _infeasible(plan, fleet, profile):
        raise Infeasible(f"plan: {finding}")


def _malformed(plan: Plan, fleet: Fleet, profile: Profile) -> Iterator[str]:
    faults = list(unknown(plan, fleet, profile))
    yield from faults
    if faults:
        return
    yield from units_at_fault(plan, profile)
    yield from cut_where_none_may_be(plan, profile)
    yield from nothing_to_train(plan, profile)
    yield from gradients_cut_off(plan, profile)
    yield from crossed_by_nothing(plan)
    yield from given_away_twice(plan)
    faults = list(misordered(plan))
    yield from faults
    if not faults:
        yield from stuck(plan, fleet, profile)


def _infeasible(plan: Plan, fleet: Fleet, profile: Profile) -> Iterator[str]:
    if not any(unknown(plan, fleet, profile)):
        yield from over_memory(plan, fleet, profile)
