"""Plans anew when a training loses devices, or when one of them has become slow.

Planners are no part of the stage key of train: whatever plan follows a loss, the weights are the same but for rounding.
What chooses gates anew is none either: it is the planner of the plan, whose options are in the key. Whoever changes
what it chooses raises the version of `train` in the catalog.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypedDict

from fleetune.contracts.fleet import Fleet
from fleetune.contracts.head_scores import HeadScores
from fleetune.contracts.plan import Plan, PlanResult
from fleetune.contracts.profile import Profile


class Replanning(TypedDict):
    """The settings of a training task that concern planning anew."""

    revise: Callable[[Plan, Collection[str]], PlanResult]
    around_stragglers: Callable[[Plan, Collection[str], Mapping[str, float], bool], PlanResult]
    choose_gates: Callable[[Plan, Iterable[HeadScores]], Mapping[str, str]]
    load_planners: Callable[[], None]


def replanning(result: PlanResult, fleet: Fleet, profile: Profile, seed: int, owners: Iterable[str] = ()) -> Replanning:
    """Return what plans anew in a training of this plan. owners: devices that have data of their own."""
    return Replanning(
        revise=reviser(result, fleet, profile, seed, tuple(owners)),
        around_stragglers=around_stragglers(result, fleet, profile, seed, tuple(owners)),
        choose_gates=gate_chooser(result, fleet, profile, seed),
        load_planners=load_planners,
    )


def load_planners() -> None:
    """Import what the functions below would import when they are first called, which takes a third of a second."""
    import fleetune.planning.revision  # noqa: F401  # not in stage keys


def reviser(
    result: PlanResult, fleet: Fleet, profile: Profile, seed: int, owners: tuple[str, ...] = ()
) -> Callable[[Plan, Collection[str]], PlanResult]:
    """Return what plans for the devices that are left. result: the first plan."""

    def revise(plan: Plan, lost: Collection[str]) -> PlanResult:
        from fleetune.planning.revision import Reviser  # not in stage keys
        from fleetune.planning.strategy import Problem  # not in stage keys

        return Reviser(problem=Problem.of(result, fleet, profile, seed, owners))(plan, lost)

    return revise


def around_stragglers(
    result: PlanResult, fleet: Fleet, profile: Profile, seed: int, owners: tuple[str, ...] = ()
) -> Callable[[Plan, Collection[str], Mapping[str, float], bool], PlanResult]:
    """Return what plans beside devices that are slower than their profiles; see `reviser`."""

    def revise(plan: Plan, lost: Collection[str], paces: Mapping[str, float], must: bool) -> PlanResult:
        from fleetune.planning.revision import around  # not in stage keys
        from fleetune.planning.strategy import Problem  # not in stage keys

        return around(Problem.of(result, fleet, profile, seed, owners), plan, lost, paces, must=must)

    return revise


def gate_chooser(
    result: PlanResult, fleet: Fleet, profile: Profile, seed: int
) -> Callable[[Plan, Iterable[HeadScores]], Mapping[str, str]]:
    """Return what chooses the gates of a plan by scores that training took; see `reviser`."""

    def chosen(plan: Plan, scores: Iterable[HeadScores]) -> Mapping[str, str]:
        from fleetune.planning.strategies.d2ft import choose_gates  # not in stage keys
        from fleetune.planning.strategy import Problem  # not in stage keys

        return choose_gates(Problem.of(result, fleet, profile, seed), plan, scores)

    return chosen
