"""The plans of a training: the first one, and those that follow when devices are lost."""

import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from fleetune.checks import untrainable_features
from fleetune.clock.averaging import average_rows
from fleetune.contracts.metrics import span_s
from fleetune.contracts.plan import Plan, PlanResult
from fleetune.errors import Infeasible, Refused
from fleetune.formatting import size
from fleetune.program.in_force import averages_after
from fleetune.recovery.holdings import INITIAL, needs_of
from fleetune.recovery.protocol import Layout, Move
from fleetune.recovery.transfers import DISK, Item
from fleetune.training.batches import lane_samples, shares_batches
from fleetune.training.checkpoints import savers_of
from fleetune.training.task import TrainingTask
from fleetune.training.worker_state import ModelDescription

MIN_GAIN = 0.05
"""Least relative gain in the forecast of a round for which devices that come back are taken into the plan."""
BACKUP_SHARE = 0.5
"""Of a link's rate, at most, for backups: what the rounds send passes between their pieces."""


class Resumption(NamedTuple):
    """How a training goes on."""

    sentence: str
    left_out: str
    """A sentence about samples that are not trained on any more; empty if there are none."""
    rounds_again: int
    moved_bytes: int


class ItemSizes(Mapping[Item, int]):
    """Bytes of what training changes, the same in every lane; a parameter's with its optimizer state."""

    def __init__(self, by_name: Mapping[str, int]) -> None:
        self._by_name = by_name

    def __getitem__(self, item: Item) -> int:
        return self._by_name[item.name]

    def __iter__(self) -> Iterator[Item]:
        return (Item("", name) for name in self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)


class Revisions:
    """The plans of one training, by their number."""

    def __init__(self, task: TrainingTask) -> None:
        self._task = task
        self._devices = (*task.plan.plan.devices, *task.spares)
        self._described = ModelDescription(task.model_folder, task.model)
        self._results = {task.plan.plan.revision: task.plan}
        self.newest = task.plan.plan.revision
        self._averages_s: dict[int, float] = {}
        """Revision -> forecast seconds of an average, of those that were asked for."""
        self._paces: dict[str, float] = {}
        """Of the stragglers that the newest plan is fair to."""
        self._is_ready = len(self._devices) == 1

    @cached_property
    def sizes_bytes(self) -> ItemSizes:
        """Bytes of each item."""
        whole, optimizer = self._described.whole, self._task.training.optimizer_bytes_per_param_byte
        found = {name: buffer.nbytes for name, buffer in whole.named_buffers()}
        found |= {name: int(p.nbytes * (1 + optimizer)) for name, p in self._described.trainable.items()}
        return ItemSizes(found)

    def get_ready(self) -> None:
        """Load what plans anew, in a thread: called after the first round, as devices that load want the processors."""
        if not self._is_ready:  # no daemon: none may die in an import
            threading.Thread(target=self._task.load_planners, name="load-planners").start()
        self._is_ready = True

    def result(self, revision: int) -> PlanResult:
        """Return a plan by its number."""
        return self._results[revision]

    def durations_s(self, done: int) -> tuple[float, float]:
        """Return the forecast seconds of a round of the newest plan, and those of the average that its devices make
        once so many rounds are done; 0 where they make none."""
        found = self._results[self.newest]
        every, rounds = found.plan.average_every_rounds, self._task.training.rounds
        if not done or not averages_after(every, done - 1, rounds):
            return found.objective, 0.0
        if self.newest not in self._averages_s:
            rows = average_rows(found.plan, self._task.fleet, self._task.profile)
            self._averages_s[self.newest] = span_s(rows)
        return found.objective, self._averages_s[self.newest]

    def layout(self, revision: int) -> Layout:
        """Return what the conductor must know of a plan."""
        plan = self._results[revision].plan
        return Layout(
            revision=revision,
            devices=plan.devices,
            needs=needs_of(plan, self._described.unit_items),
            savers=savers_of(plan),
            backup_every_rounds=plan.backup_every_rounds,
            average_every_rounds=plan.average_every_rounds,
        )

    def revise(
        self, living: Collection[str], paces: Mapping[str, float], cut: Collection[tuple[str, str]] = ()
    ) -> Layout:
        """Return the plan that follows the newest one on these devices.

        paces: stragglers that it is to be fair to. cut: links that are given up.

        The plan itself where none of its devices is lost or slow, unless devices have come back, or spares are there,
        with which a round is forecast faster by MIN_GAIN. Infeasible if there is none; Refused as the strategy says.
        """
        if without := [f"{a}>{b}" for a, b in cut if {a, b} <= set(living)]:
            raise Infeasible(f"no plan does without the link {', '.join(without)}")
        first, newest = self._task.plan.plan, self._results[self.newest].plan
        lost = [device for device in self._devices if device not in living]
        back = set(self._devices) - set(newest.devices) - set(lost)
        slow = {device: pace for device, pace in paces.items() if device in living}
        if set(newest.devices) <= set(living):
            before = self._paces
            if back and (grown := self._grown(lost, slow)):
                self._paces = slow
                return grown
            self._paces = before  # of the plan that stays
            if slow == before:
                return self.layout(self.newest)
            return self._adopt(self._solve(first if self._has_lanes else newest, lost, slow))
        plan = first if self._has_lanes or back else newest
        return self._adopt(self._solve(plan, lost, slow, must=True))

    def _solve(self, plan: Plan, lost: Collection[str], slow: dict[str, float], *, must: bool = False) -> PlanResult:
        """Return a plan for the devices that are left, fair to stragglers. must: whatever it gains."""
        if self._task.revise is None:
            raise Infeasible("there is nothing to plan with")
        without = [*lost, *(each.name for each in self._task.fleet.devices if each.name not in self._devices)]
        if slow == self._paces and not slow:
            return self._task.revise(plan, without)
        return self._around(plan, without, slow, must)

    def _grown(self, lost: Collection[str], slow: dict[str, float]) -> Layout | None:
        """Return the plan for devices that have come too, if that is forecast to be faster; else None.

        The first plan once all of its devices are there.
        """
        first, newest = self._task.plan, self._results[self.newest]
        try:
            some = slow or set(first.plan.devices) & set(lost)
            made = self._solve(first.plan, lost, slow, must=True) if some else first
        except (Infeasible, Refused):
            return None
        slower = made.objective > (1 - MIN_GAIN) * newest.objective
        return None if slower and not self._has_lanes else self._adopt(made)

    def _adopt(self, made: PlanResult) -> Layout:
        """Make a plan the newest one; Refused if it cannot be trained, or not with the samples that lanes own."""
        plan = made.plan
        if found := untrainable_features(made.plan):
            raise Refused(f"strategy {plan.strategy} planned {', '.join(found)}, which cannot be trained")
        if strangers := {lane.name for lane in made.plan.lanes} - set(self._owned) if self._has_lanes else ():
            raise Refused(f"strategy {plan.strategy} planned {', '.join(sorted(strangers))}, which owns no samples")
        self.newest += 1
        self._results[self.newest] = replace(made, plan=replace(made.plan, revision=self.newest))
        return self.layout(self.newest)

    def describe_recovery(self, move: Move, rounds: int) -> Resumption:
        """Return how a training goes on after so many rounds, and without which samples."""
        found = move.restoration
        again = rounds - found.version.rounds
        moved_bytes = sum(each.bytes for each in found.transfers if each.source != DISK)
        read = ["the checkpoint is read"] if found.reads_checkpoint else []
        moved = " and ".join([*read, *([f"{size(moved_bytes)} moved"] if moved_bytes or not read else [])])
        moved = "the initial weights are read" if found.version == INITIAL else moved
        said = f"goes on from round {found.version.rounds} on {', '.join(move.layout.devices)}: {moved}"
        said += f", {again} round{'' if again == 1 else 's'} run again" if again else ""
        return Resumption(said, self._left_out(move.layout.revision), again, moved_bytes)

    def _left_out(self, revision: int) -> str:
        """Return a sentence about the samples that no lane of a plan has, and that the first plan's had; '' if none."""
        lanes = {lane.name for lane in self._results[revision].plan.lanes}
        out = {lane: samples for lane, samples in self._owned.items() if lane not in lanes} if self._has_lanes else {}
        if not out:
            return ""
        total, names = sum(self._owned.values()), f"{', '.join(out)} {'is' if len(out) == 1 else 'are'} left out"
        if shares_batches(self._task.dealing) and not self._task.local:
            return f"{names}: {len(out)} of {len(self._owned)} pieces of each round's batch are trained on no more"
        return (
            f"{names}: {sum(out.values())} of {total} training "
            "samples are not trained on any more, and the others' lanes weigh by their own"
        )

    @cached_property
    def _owned(self) -> dict[str, int]:
        """Lane -> samples that it owns from the first plan on."""
        local = {device: data.samples for device, data in self._task.local.items()}
        return lane_samples(self._task.dealing, self._task.data_folder, local)

    @property
    def _has_lanes(self) -> bool:
        """True if samples are bound to lanes, and these to devices."""
        return len(self._task.dealing.lanes) > 1 or bool(self._task.local)

    def _around(self, plan: Plan, lost: Collection[str], paces: dict[str, float], must: bool) -> PlanResult:
        assert self._task.around_stragglers is not None, "a training without it follows no paces"
        self._paces = paces  # also where no plan is worth it: it is not looked for again
        return self._task.around_stragglers(plan, lost, paces, must)

    def rates(self, plan: Plan, device: str) -> tuple[dict[str, float], dict[str, float]]:
        """Return the rates that a device's messages keep to, by peer: of shared links, and of backups."""
        link = self._task.fleet.link
        return (
            {
                use.target: use.share * link(device, use.target).bytes_per_s
                for use in plan.links
                if use.source == device and use.share < 1
            },
            {
                each.holder: BACKUP_SHARE * link(device, each.holder).bytes_per_s
                for each in plan.backups
                if each.holder != device
            },
        )
