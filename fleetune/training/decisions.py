"""What the commit of a round decides for the rounds that follow: blocks that move, and gates that are chosen anew."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.head_scores import HeadScores, ReportedScores, summed_scores
from fleetune.contracts.metrics import RoundMetrics, TimelineRow
from fleetune.contracts.plan import Plan
from fleetune.errors import Infeasible, Refused, first_line
from fleetune.program.in_force import after_rounds
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


Operations = Mapping[str, str]
"""Subnet -> one digit per micro-batch."""


class GateRefresh:
    """Chooses gates anew while a training goes on (D2FT), by the scores of a round in which every head ran in full.

    Devices score the heads whose gradients they have; a head that a cut divides gets the sum of its parts. The choice
    is a part of the round's commit, and a resumed training follows what was logged, also of rounds that it runs again.
    """

    def __init__(
        self,
        choose: Callable[[Plan, Iterable[HeadScores]], Operations] | None,
        logged: Mapping[int, Operations],
        note: Callable[[str], None],
    ) -> None:
        """logged: round -> choice of rounds that ran before and are run again."""
        self._choose, self._known, self._note = choose, dict(logged), note

    def after(self, plan: Plan, round: int, ready: Mapping[str, Mapping[str, Any]]) -> Operations:
        """Return the operations of all subnets from the round after this one on, in which `plan` scored them.

        ready: device -> its report of the round. Where nothing can be chosen by the reports, gates stay, and a note
        says why. Refused: the task has nothing that chooses.
        """
        if round not in self._known:
            self._known[round] = self._chosen(plan, round, ready)
        return self._known[round]

    def stays(self, plan: Plan, round: int) -> Operations:
        """Return the operations of the plan, of whose subnets some have no scores as their gradients overflowed."""
        self._note(f"round {round}: gates stay as they are, since gradients overflowed in the round that was to score")
        return {gate.subnet: gate.operations for gate in plan.gates}

    def _chosen(self, plan: Plan, round: int, ready: Mapping[str, Mapping[str, Any]]) -> Operations:
        if self._choose is None:
            raise Refused("training: nothing chooses gates anew; leave refresh_gates_every_rounds out of the plan")
        before = {gate.subnet: gate.operations for gate in plan.gates}
        try:
            scores = summed_scores(
                each
                for device in sorted(ready)
                for part in ready[device].get("scores", ())
                for each in json_io.parse(ReportedScores, bytes(part), f"scores of device {device}").heads
            )
            found = self._choose(plan, scores)
        except (Infeasible, Refused) as error:
            self._note(f"round {round}: gates stay as they are: {first_line(error)}")
            return before
        changed = sum(found[name] != before.get(name) for name in found)
        said = f"{len(found)} heads were scored on its samples; {changed} have other gates from now on"
        self._note(f"round {round}: {said}")
        return found
