"""Blocks that lanes of LoLa-DEFT have been dealt anew: plans before and after."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fleetune.contracts.metrics import RoundMetrics
from fleetune.contracts.plan import Plan

Moves = Mapping[str, tuple[str, ...]]
"""Lane -> units that it trains from the next round on; empty if nothing moves."""


def moved(plan: Plan, moves: Moves) -> Plan:
    """Return the plan in which lanes of one segment train other units."""
    lanes = tuple(
        replace(lane, segments=(replace(lane.segments[0], trains=tuple(moves[lane.name])),))
        if lane.name in moves
        else lane
        for lane in plan.lanes
    )
    return replace(plan, lanes=lanes)


def permutes(plan: Plan, moves: Moves) -> bool:
    """Return whether moves only deal the lanes' blocks anew; those of another plan do not."""
    blocks = {lane.name: lane.segments[0].trains for lane in plan.lanes}
    own = [blocks[lane] for lane in moves if lane in blocks]
    return len(own) == len(moves) and sorted(own) == sorted(map(tuple, moves.values()))


def after_rounds(plan: Plan, rounds: Iterable[RoundMetrics]) -> Plan:
    """Return the plan that is in force after these rounds; what another plan has moved is passed over."""
    for metrics in rounds:
        if permutes(plan, metrics.moves):
            plan = moved(plan, metrics.moves)
    return plan
