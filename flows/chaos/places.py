"""Where faults can befall the devices of a plan, and which devices may be lost so that all weights stay the same.

A plan of one lane deals the samples of a lost device to the others. Where lanes own samples, what can be lost without
them is a device that begins no lane: a helper of split learning, whose clients go on elsewhere. A plan with a collector
(LoLa-DEFT) waits for a lost device, which is back in time unless it is lost again and again, with the same samples; the
collector itself is not taken. Whatever else befalls devices is for all plans: freezes for a moment, lost messages, the
end of the coordinator.
"""

from collections.abc import Collection
from dataclasses import dataclass

from fleetune.contracts.plan import Plan
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import Refused
from fleetune.training import faults
from fleetune.training.checkpoints import savers_of

POINTS = {
    faults.KILL: (faults.FORWARD, faults.BACKWARD, faults.PREPARED, faults.COMMIT),
    faults.FREEZE: (faults.FORWARD, faults.BACKWARD, faults.PREPARED, faults.COMMIT),
    faults.MEMORY: (faults.FORWARD, faults.BACKWARD),
    faults.CUT: (faults.NEXT,),
    faults.SEVER: (faults.NEXT,),
}
"""Kind -> points that every device passes in every round; which messages it sends depends on its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The devices of a plan, and what only some of them pass, or in some rounds."""

    devices: tuple[str, ...]
    takeable: tuple[str, ...]
    """Devices that may be lost."""
    sends: bool = True
    """True if devices send each other values, whose links may break."""
    grouped: Collection[str] = ()
    """Devices that take part in an all-reduce."""
    savers: Collection[str] = ()
    backed_up: Collection[str] = ()
    checkpoint_every_rounds: int = 0
    backup_every_rounds: int = 0

    @staticmethod
    def of(plan: Plan, training: TrainingRequest) -> "Places":
        """Return those of a plan; Refused for one of lanes whose blocks are dealt anew by measured times."""
        if plan.replan_every_rounds:
            raise Refused(
                f"chaos: strategy {plan.strategy} deals blocks anew by measured times, which differ from training to "
                "training; set its option replan_every_rounds to 0"
            )
        segments = [segment for lane in plan.lanes for segment in lane.segments]
        return Places(
            devices=plan.devices,
            takeable=_takeable(plan),
            sends=any(len(lane.segments) > 1 or len(lane.segments[0].devices) > 1 for lane in plan.lanes),
            grouped={name for segment in segments if len(segment.devices) > 1 for name in segment.devices},
            savers=savers_of(plan),
            backed_up={
                name
                for each in plan.backups
                for lane in plan.lanes
                if lane.name == each.lane
                for name in lane.segments[each.segment].devices
            },
            checkpoint_every_rounds=training.checkpoint_every_rounds or 0,
            backup_every_rounds=plan.backup_every_rounds,
        )

    def points(self, kind: str, device: str, round: int) -> tuple[str, ...]:
        """Return where a fault of a kind may befall a device: where only this round has the point, there."""
        always = POINTS[kind]
        if kind == faults.KILL and device in self.savers and _ends(round, self.checkpoint_every_rounds):
            return (faults.CHECKPOINT,) if self.checkpoint_every_rounds > 1 else (*always, faults.CHECKPOINT)
        if kind == faults.KILL and device in self.backed_up and _ends(round, self.backup_every_rounds):
            return (faults.BACKUP,) if self.backup_every_rounds > 1 else (*always, faults.BACKUP)
        return (
            (*always, faults.ALL_REDUCE) if kind in (faults.KILL, faults.FREEZE) and device in self.grouped else always
        )


def _takeable(plan: Plan) -> tuple[str, ...]:
    if len(plan.lanes) == 1:
        return plan.devices
    if plan.collector:
        return tuple(name for name in plan.devices if name != plan.collector)
    owners = {name for lane in plan.lanes for name in lane.segments[0].devices}
    return tuple(name for name in plan.devices if name not in owners)


def _ends(round: int, every: int) -> bool:
    """Return whether a round is the last of so many; False where there are none."""
    return every > 0 and (round + 1) % every == 0
