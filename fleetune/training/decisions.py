"""What the commit of a round decides for the rounds that follow: blocks that move, and gates that are chosen anew."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fleetune.contracts.metrics import RoundMetrics, TimelineRow
from fleetune.contracts.plan import Plan
from fleetune.program.in_force import after_rounds
from fleetune.training.gate_refresh import GateRefresh
from fleetune.training.measurements import busy_s, upload_s
from fleetune.training.replanning import Replanner
from fleetune.training.task import TrainingTask


class Decisions:
    """Decides by what devices report of a round."""

    def __init__(self, task: TrainingTask, plan: Plan, again: Sequence[RoundMetrics]) -> None:
        """plan: the one in force. again: rounds that ran before and are run again, whose decisions are repeated."""
        self._task = task
        self._replanner = Replanner(plan, task.fleet, task.profile, {each.round: each.moves for each in again})
        chosen = {each.round: each.gates for each in again if each.gates}
        self._gates = GateRefresh(task.choose_gates, chosen, task.note)
        self.plan = plan
        """The one in force: the next round runs it."""

    def follow(self, plan: Plan) -> None:
        """Go on from another plan."""
        self.plan = plan
        self._replanner.follow(plan)

    def remember(self, again: Sequence[RoundMetrics]) -> None:
        """Repeat what was decided after these rounds, which are run again."""
        self._replanner.remember({each.round: each.moves for each in again})

    def added_to(
        self, metrics: RoundMetrics, ready: Mapping[str, Mapping[str, Any]], rows: Sequence[TimelineRow]
    ) -> RoundMetrics:
        """Return the metrics of a round that the plan ran with what is decided after it, which is in force from now on.

        ready: device -> its report. rows: of the round.
        """
        if self._replanner.plan.replan_every_rounds:
            busy = self._task.measured_busy(metrics.round, busy_s(rows))
            self._replanner.observe(busy, upload_s(rows, self.plan.collector))
            metrics = replace(metrics, moves=dict(self._replanner.after(metrics.round)))
            self._note_moves(metrics)
        if self.plan.refreshes_gates_in(metrics.round):
            chosen = (
                self._gates.stays(self.plan, metrics.round)
                if metrics.overflowed
                else self._gates.after(self.plan, metrics.round, ready)
            )
            metrics = replace(metrics, gates=dict(chosen))
        self.plan = after_rounds(self.plan, [metrics])
        return metrics

    def _note_moves(self, metrics: RoundMetrics) -> None:
        if metrics.moves:
            said = "; ".join(f"{lane} {units[0]} .. {units[-1]}" for lane, units in metrics.moves.items())
            self._task.note(f"round {metrics.round}: blocks are dealt anew; from the next one on train: {said}")
