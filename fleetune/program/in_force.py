"""The plan that is in force after rounds, as blocks move between lanes (LoLa-DEFT) and gates are chosen anew (D2FT)."""

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


def regated(plan: Plan, operations: Mapping[str, str]) -> Plan:
    """Return the plan with other operations of these subnets; those that it has no gate of are passed over, and so are
    operations of another number of micro-batches.
    """
    gates = tuple(
        replace(gate, operations=found) if len(found) == plan.micro_batches else gate
        for gate, found in ((gate, operations.get(gate.subnet, gate.operations)) for gate in plan.gates)
    )
    return plan if gates == plan.gates else replace(plan, gates=gates)


def after_rounds(plan: Plan, rounds: Iterable[RoundMetrics], moves_from: int = 0, gates_from: int = 0) -> Plan:
    """Return the plan that is in force after these rounds; what another plan has moved is passed over.

    moves_from: the first round whose moves count: they follow from measured times, which may have been of other
    machines before. gates_from: the first round whose gates count.
    """
    for metrics in rounds:
        if metrics.round >= moves_from and permutes(plan, metrics.moves):
            plan = moved(plan, metrics.moves)
        if metrics.round >= gates_from and metrics.gates and plan.refresh_gates_every_rounds:
            plan = regated(plan, metrics.gates)
    return plan


def averages_after(every_rounds: int, round: int, rounds: int) -> bool:
    """Return whether the lanes' parameters are averaged after a round (from 0): every so many, and after the last."""
    return bool(every_rounds) and ((round + 1) % every_rounds == 0 or round + 1 == rounds)
