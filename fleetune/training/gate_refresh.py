"""Gates that are chosen anew while a training goes on (D2FT), by the scores of a round in which every head ran in full.

Devices score the heads whose gradients they have; a head that a cut divides gets the sum of its parts. The choice is a
part of the round's commit. A resumed training follows the logged choices, those of rounds that it runs again included.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.head_scores import HeadScores, ReportedScores, summed_scores
from fleetune.contracts.plan import Plan
from fleetune.errors import Infeasible, Refused, first_line

Operations = Mapping[str, str]
"""Subnet -> one digit per micro-batch."""


class GateRefresh:
    """Chooses the gates of the rounds that follow."""

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
