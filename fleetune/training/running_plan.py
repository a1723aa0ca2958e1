"""What a plan makes of one worker: the state that it holds, and the rounds that it runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.mixed_precision import FP16
from fleetune.contracts.plan import Plan
from fleetune.launching.process_limits import CpuThrottle
from fleetune.models.attention_heads import AttentionHead, attention_heads, find_blocks
from fleetune.models.device_memory import await_device
from fleetune.program import DeviceProgram
from fleetune.program.in_force import averages_after, moved, regated
from fleetune.recovery.holdings import INITIAL, SentBackup, Version, backups_of
from fleetune.recovery.transfers import Item
from fleetune.training.checkpoints import Tensors, keeps_residuals
from fleetune.training.exchange import Exchange, attempt_of
from fleetune.training.gradients import NotFinite, gradient_norms, pack_norms
from fleetune.training.migration import Migration
from fleetune.training.optimizer import NamedOptimizer
from fleetune.training.parcels import StoredItems
from fleetune.training.rounds import RoundContext, RoundRunner
from fleetune.training.task import WorkerTask
from fleetune.training.worker_state import (
    CommittedState,
    ModelDescription,
    StoredReader,
    WorkerState,
    described,
    load_state,
)


@dataclass(kw_only=True)
class RunningPlan:
    """A plan at a version on one device."""

    task: WorkerTask
    described: ModelDescription
    order: Migration
    """That led to it."""
    held: WorkerState
    state: CommittedState
    context: RoundContext
    program: DeviceProgram
    rounds: RoundRunner
    is_averaged: bool = False
    """True if all lanes hold the same state: an average was the last thing that changed it."""

    @property
    def version(self) -> Version:
        """The version that is live."""
        return self.state.version

    def items(self) -> dict[Item, dict[str, torch.Tensor]]:
        """Return everything that training changes here, not copied."""
        return self.held.items(self.context.plan)

    def holds(self, version: Version) -> bool:
        """Return whether this version is live."""
        return self.version == version and self.state.is_whole

    def averages_after(self, round: int) -> bool:
        """Return whether lanes are averaged after a round."""
        return averages_after(self.context.plan.average_every_rounds, round, self.task.training.rounds)

    def is_after(self, order: Migration) -> bool:
        """Return whether a migration changes nothing here."""
        return self.context.plan == order.plan and self.holds(order.version)

    @cached_property
    def backups(self) -> tuple[SentBackup, ...]:
        """What devices send others that hold it as backups."""
        return backups_of(self.context.plan, self.described.unit_items)

    @property
    def backups_here(self) -> frozenset[Item]:
        """What this device is to hold as backups for others."""
        return items_held(self.task.device, self.backups)

    def apply(self, commit: Mapping[str, Any]) -> list[TimelineRow]:
        """Apply the round that is prepared; return the rows of the average that follows it."""
        round = commit["round"]
        with self.context.throttle.throttled(), self.state.advance(attempt_of(commit)):
            self.rounds.commit(round, {n: None if s is None else float(s) for n, s in commit["scales"].items()})
            self.is_averaged = self.averages_after(round)
            rows = self.rounds.average() if self.is_averaged else []
            await_device(torch.device(self.task.accelerator))
            if moves := commit.get("moves"):
                self._deal({lane: tuple(units) for lane, units in moves.items()})
            if gates := commit.get("gates"):
                self._regate(gates)
        return rows

    def norms(self, round: int) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Return the packed norms of all gradients that this device steps, by lane, and the lanes that overflowed.

        Only those that clipping needs are packed: each group's leader reports, and of a weight that several segments
        share the first of them. A collector reports what it has summed, as the first lane's. NotFinite for a gradient
        that is not, but in fp16.
        """
        found: dict[str, dict[str, torch.Tensor]] = {}
        plan, collector, overflowed = self.context.plan, self.held.collector, set[str]()

        def norms_of(optimizer: NamedOptimizer, lane: str) -> dict[str, torch.Tensor]:
            try:
                return gradient_norms(optimizer.gradients(), round)
            except NotFinite:
                if self.task.model.mixed_precision != FP16:
                    raise
                overflowed.add(lane)
                return {}

        with self.context.throttle.throttled():
            resting = plan.resting_in(round)
            for each in (seat for seat in self.held.seats.values() if seat.seat.lane.name not in resting):
                norms = norms_of(each.optimizer, each.seat.lane.name)
                if each.seat.is_leader and not plan.collector:
                    own = each.seat.index
                    mine = {n: norm for n, norm in norms.items() if each.tied.get(n, (own,))[0] == own}
                    found.setdefault(each.seat.lane.name, {}).update(mine)
            if collector is not None:
                found[plan.lanes[0].name] = norms_of(collector.optimizer, plan.lanes[0].name)
        if self.task.training.clip_norm is None:
            return {}, sorted(overflowed)
        order = {name: index for index, name in enumerate(self.described.trainable)}
        return {lane: pack_norms(norms, order) for lane, norms in found.items()}, sorted(overflowed)

    def _deal(self, moves: Mapping[str, tuple[str, ...]]) -> None:
        """Let lanes train other units from the next round on."""
        plan = moved(self.context.plan, moves)
        self.held.deal(plan, self.task, self.described)
        self._follow(plan)

    def _regate(self, operations: Mapping[str, str]) -> None:
        """Let heads run as they were chosen anew from the next round on."""
        plan = regated(self.context.plan, operations)
        for each in self.held.seats.values():
            each.regate({gate.subnet: gate.operations for gate in plan.gates})
        self._follow(plan)

    def _follow(self, plan: Plan) -> None:
        self.context = replace(self.context, plan=plan)
        self.__dict__.pop("backups", None)
        self.program = self.described.program(plan, self.task.device)
        self.rounds = RoundRunner(self.program, self.context)


@dataclass(frozen=True)
class PlanLoader:
    """Loads what a device does under a plan."""

    task: WorkerTask
    exchange: Exchange

    @cached_property
    def described(self) -> ModelDescription:
        """The prepared model."""
        return described(Path(self.task.model_folder), self.task.model)

    @cached_property
    def heads(self) -> tuple[AttentionHead, ...]:
        """All attention heads of the model."""
        return attention_heads(find_blocks(self.described.graph, self.described.whole, self.described.config))

    @cached_property
    def throttle(self) -> CpuThrottle:
        """The device's share of a CPU."""
        return CpuThrottle(self.task.cores)

    def backups_here(self, plan: Plan) -> frozenset[Item]:
        """Return what this device is to hold as backups for others under a plan."""
        return items_held(self.task.device, backups_of(plan, self.described.unit_items))

    def stored(self, order: Migration) -> StoredItems:
        """Return what this device reads of its version; TryAgain if a file is damaged."""
        return StoredItems(self.task.device, order, self.described.weights)

    def load_frozen(self) -> dict[str, torch.Tensor]:
        """Return the weights that training leaves as they are, by name, of this device's part of the first plan."""
        return load_state(self.task, self.described, {}, self.task.dealt or self.task.plan).frozen()

    def load(
        self,
        order: Migration,
        own: dict[Item, Tensors],
        stored: StoredReader,
        residuals: Mapping[str, torch.Tensor],
        frozen: dict[str, torch.Tensor],
    ) -> RunningPlan:
        """Return a plan at its version.

        own: everything that this device has of the version; what is taken over leaves it. stored: reads the rest.
        residuals: what its messages had lost then. frozen: weights that no training changes, which are not loaded
        again. TryAgain if something is missing or a checkpoint is damaged.
        """
        task, dealt = replace(self.task, plan=order.plan), self.task.dealt or self.task.plan
        held = load_state(task, self.described, frozen, dealt)
        if order.version != INITIAL:
            held.put(order.plan, own, stored)
        program = self.described.program(order.plan, task.device)
        context = RoundContext(
            plan=order.plan,
            dealt=dealt,
            seed=task.seed,
            seats=held.seats,
            exchange=self.exchange,
            throttle=self.throttle,
            collector=held.collector,
            averages=held.averages,
            averager=held.averager,
            heads=self.heads if order.plan.refresh_gates_every_rounds else (),
        )
        fed = {task.device: context.feedback} if keeps_residuals(order.plan, task.device) else {}
        if fed and residuals:
            context.feedback.load(dict(residuals))
        return RunningPlan(
            task=task,
            described=self.described,
            order=order,
            held=held,
            state=CommittedState(held.shards(order.plan), order.version, fed),
            context=context,
            program=program,
            rounds=RoundRunner(program, context),
        )


def items_held(device: str, backups: Iterable[SentBackup], source: str = "") -> frozenset[Item]:
    """Return what a device holds for others, or for one of them."""
    held = (each.items for each in backups if each.holder == device and source in ("", each.source))
    return frozenset().union(*held)
