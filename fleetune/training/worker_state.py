"""What a worker holds: the seats of its device, and what all lanes share if it is a collector or averages them; before
that, the model without its weights.

Its state after the last committed round may be written while the next round runs.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from transformers import PretrainedConfig

from fleetune.codecs import ErrorFeedback
from fleetune.contracts import json_io
from fleetune.contracts.plan import Plan
from fleetune.contracts.run_config import ModelRequest
from fleetune.errors import TryAgain
from fleetune.models.decay import undecayed_parameters
from fleetune.models.graph import Graph, parse_graph
from fleetune.models.init_weights import INIT_WEIGHTS
from fleetune.models.segment import SegmentRunner
from fleetune.models.skeleton import base_skeleton, saved_configuration, skeleton
from fleetune.models.source import source_folder
from fleetune.models.units import state_by_unit, tied_parameters_by_unit
from fleetune.models.weights import WeightReader, weight_reader
from fleetune.program import DeviceProgram, Seat, lower, seats_of
from fleetune.program.lower import averaging_device
from fleetune.recovery.holdings import Attempt, UnitItems, Version
from fleetune.recovery.transfers import Item
from fleetune.training.averaging import Averager, Averages, parts_of
from fleetune.training.batches import Batches, lane_samples, lane_weights
from fleetune.training.checkpoints import (
    MODEL,
    OPTIMIZER,
    Buffers,
    FileDigest,
    StateHolder,
    Tensors,
    shard_name,
    write_residuals,
    write_shard,
)
from fleetune.training.collector import Collector
from fleetune.training.exchange import BrokenOff, check_tensor
from fleetune.training.gradients import tied_holders
from fleetune.training.optimizer import NamedOptimizer, is_statistic, moment_decays
from fleetune.training.seat import TrainingSeat, gate_heads, new_seat
from fleetune.training.task import WorkerTask

StoredReader = Callable[[Collection[Item]], Iterable[tuple[Item, Tensors]]]
"""Yields those of some items that no device has sent: from the disk."""
COMMIT_S = 10.0
"""Longest wait for a commit that is on its way to this worker or is just being applied."""


class Shard(NamedTuple):
    """A file of a checkpoint, written by one worker."""

    file: str
    digest: FileDigest


class CommittedState:
    """Parameters, committed statistics and optimizer state of a worker, by shard.

    A round changes gradients and working copies only; parameters move in `advance`, which excludes `write`. So any
    thread may write the state of the last committed round, however long the running round takes.
    """

    def __init__(
        self,
        shards: Mapping[str, tuple[StateHolder, NamedOptimizer]],
        version: Version,
        residuals: Mapping[str, ErrorFeedback] | None = None,
    ) -> None:
        """shards: name of a file -> what it holds the state of.

        residuals: this device -> what its messages lose, if it has links with error feedback.
        """
        self._shards, self._version, self._residuals = shards, version, residuals or {}
        self._moved = threading.Condition()
        self._broken = False

    @property
    def is_saved_here(self) -> bool:
        """True if this worker writes a part of each checkpoint."""
        return bool(self._shards or self._residuals)

    @property
    def version(self) -> Version:
        """The version that the state is."""
        return self._version

    @property
    def done(self) -> int:
        """The number of rounds in the state."""
        return self._version.rounds

    @property
    def is_whole(self) -> bool:
        """False once moving the state was broken off."""
        return not self._broken

    @contextmanager
    def advance(self, attempt: Attempt) -> Iterator[None]:
        """Move the state by one round that this attempt commits; after an exception it is neither the old nor the new
        one.
        """
        with self._moved:
            self._broken = True
            try:
                yield
                self._broken = False
                self._version = Version(self.done + 1, attempt)
            finally:
                self._moved.notify_all()

    def await_rounds(self, done: int) -> None:
        """Wait for a commit that has not arrived yet."""
        with self._moved:
            self._moved.wait_for(lambda: self.done >= done or self._broken, COMMIT_S)

    def write(self, folder: Path, done: int) -> list[Shard]:
        """Write the state after `done` rounds; waits for a commit that has not arrived yet.

        BrokenOff if a loss broke off the move to it; TryAgain if it is another one or the disk does not take it.
        """
        with self._moved:
            self.await_rounds(done)
            if self._broken:
                raise BrokenOff
            if self.done != done:
                raise TryAgain(f"{folder}: asked for the state after {done} rounds, this device has {self.done}")
            found = [Shard(*write_shard(folder, name, *held)) for name, held in self._shards.items()]
            return found + [Shard(*write_residuals(folder, n, each.state())) for n, each in self._residuals.items()]


@dataclass(frozen=True)
class ModelDescription:
    """The prepared model without its weights."""

    folder: Path
    """Of the prepared model."""
    request: ModelRequest

    @cached_property
    def config(self) -> PretrainedConfig:
        """The model's own configuration."""
        return saved_configuration(self.folder / "model")

    @cached_property
    def graph(self) -> Graph:
        """The recorded graph."""
        return parse_graph((self.folder / "graph.json").read_bytes(), "graph.json")

    @cached_property
    def whole(self) -> nn.Module:
        """The whole model on the meta device, whose modules no seat takes."""
        return skeleton(self.config, self.request)

    @cached_property
    def tied(self) -> dict[str, tuple[str, ...]]:
        """Unit -> its trained parameters that another unit reads too."""
        return tied_parameters_by_unit(self.graph, self.whole)

    @cached_property
    def state(self) -> dict[str, tuple[str, ...]]:
        """Unit -> names of its parameters and buffers."""
        return state_by_unit(self.graph, self.whole)

    @cached_property
    def trainable(self) -> dict[str, nn.Parameter]:
        """The model's trainable parameters by name, on the meta device, in the model's order."""
        return {name: p for name, p in self.whole.named_parameters() if p.requires_grad}

    def trainable_of(self, units: tuple[str, ...]) -> set[str]:
        """Return the names of these units' trainable parameters."""
        return {name for unit in units for name in self.state[unit] if name in self.trainable}

    @cached_property
    def constants(self) -> frozenset[str]:
        """Buffers that follow from the configuration alone, as positions do: no training changes them."""
        return frozenset(dict(self.whole.named_buffers())) - frozenset(self.whole.state_dict())

    @cached_property
    def unit_items(self) -> dict[str, UnitItems]:
        """Unit -> names of what training changes of it."""
        buffers = dict(self.whole.named_buffers())
        return {
            unit: UnitItems(
                trained=tuple(name for name in names if name in self.trainable),
                buffers=tuple(name for name in names if name in buffers and name not in self.constants),
            )
            for unit, names in self.state.items()
        }

    def program(self, plan: Plan, device: str) -> DeviceProgram:
        """Return a device's steps in a plan."""
        trainable = {unit for unit, names in self.state.items() if any(name in self.trainable for name in names)}
        statistics = {unit for unit, names in self.state.items() if any(map(is_statistic, names))}
        return lower(plan, trainable=trainable, tied=self.tied, statistics=statistics).of(device)

    def weights(self) -> WeightReader:
        """Return what reads the weights that training starts from."""
        return weight_reader(self.config, self.request, self.folder / INIT_WEIGHTS)


@dataclass(frozen=True, slots=True)
class WorkerState:
    """Everything of one worker that a round changes."""

    seats: Mapping[tuple[str, int], TrainingSeat]
    """(Lane, segment) -> seat."""
    collector: Collector | None
    averages: Averages | None
    averager: Averager | None
    constants: frozenset[str]

    def deal(self, plan: Plan, task: WorkerTask, described: ModelDescription) -> None:
        """Let the seats train what another plan says; a collector owns all optimizer state, so that nothing moves."""
        for seat in seats_of(plan, task.device):
            each = self.seats[seat.lane.name, seat.index]
            each.optimizer.clear_gradients()
            each.seat = seat
            each.runner.train_only(seat.segment.trained, described.trainable_of(seat.segment.trained))
            each.optimizer = NamedOptimizer(each.runner.parameters, task.training, steps=False)
        if self.collector is not None:
            self.collector.deal(plan)

    def shards(self, plan: Plan) -> dict[str, tuple[StateHolder, NamedOptimizer]]:
        """Return what this worker writes into each file of a checkpoint, as a leader of groups or a collector."""
        found: dict[str, tuple[StateHolder, NamedOptimizer]] = {}
        for each in self.seats.values():
            seat = each.seat
            if seat.is_leader and not (plan.collector and seat.lane != plan.lanes[0]):
                lanes = 1 if plan.collector else len(plan.lanes)
                found[shard_name(seat.lane.name, seat.index, lanes)] = (_holder(plan, each), each.optimizer)
        if self.collector is not None:
            found["collector"] = (self.collector, self.collector.optimizer)
        return found

    def items(self, plan: Plan) -> dict[Item, dict[str, torch.Tensor]]:
        """Return everything that training changes here: item -> its tensors by the keys of a checkpoint, not copied."""
        return {
            Item(lane, name): tensors
            for lane, held, optimizer in self._holders(plan)
            for name, tensors in _tensors_of(held, optimizer).items()
            if name not in self.constants
        }

    def put(self, plan: Plan, found: dict[Item, Tensors], stored: StoredReader) -> None:
        """Take over these items' tensors, of which each leaves `found` in turn, and what else is stored; TryAgain if
        one is missing."""
        takers: dict[Item, list[tuple[StateHolder, NamedOptimizer]]] = {}
        for lane, held, optimizer in self._holders(plan):
            for name in _tensors_of(held, optimizer).keys() - self.constants:
                takers.setdefault(Item(lane, name), []).append((held, optimizer))
        own = ((item, found.pop(item), "a device") for item in sorted(takers.keys() & found.keys()))
        read = ((*each, "the checkpoint") for each in stored(takers.keys() - found.keys()))
        for item, tensors, sender in chain(own, read):
            for held, optimizer in takers.pop(item):
                _put(held, optimizer, item.name, tensors, sender)
        if takers:
            raise TryAgain(f"nothing was received of {min(takers)}; run again")

    def frozen(self) -> dict[str, torch.Tensor]:
        """Return the weights that training leaves as they are, by name, for seats of another plan."""
        return {
            name: parameter.detach()
            for each in self.seats.values()
            for name, parameter in each.runner.parameters.items()
            if not parameter.requires_grad
        }

    def _holders(self, plan: Plan) -> Iterator[tuple[str, StateHolder, NamedOptimizer]]:
        """Yield (lane, holder, optimizer); the lane of a collector is empty."""
        for (lane, _), each in self.seats.items():
            yield lane, _holder(plan, each), each.optimizer
        if self.collector is not None:
            yield "", self.collector, self.collector.optimizer


def _tensors_of(held: StateHolder, optimizer: NamedOptimizer) -> dict[str, dict[str, torch.Tensor]]:
    """Return name -> tensors of what a checkpoint keeps of it."""
    found = {name: {MODEL + name: tensor} for name, tensor in held.buffers.items()}
    for name, parameter in held.parameters.items():
        if parameter.requires_grad:
            state = {f"{OPTIMIZER}{kind}:{name}": tensor for kind, tensor in optimizer.state_of(name).items()}
            found[name] = {MODEL + name: parameter.detach(), **state}
    return found


def _put(held: StateHolder, optimizer: NamedOptimizer, name: str, tensors: Tensors, sender: str) -> None:
    """Overwrite a parameter or buffer in place, and its optimizer state."""
    target = held.parameters[name] if name in held.parameters else held.buffers[name]
    check_tensor(sender, f"the state of {name}", tensors[MODEL + name], target.dtype, tuple(target.shape))
    with torch.no_grad():
        target.copy_(tensors[MODEL + name])
    state = {key.removeprefix(OPTIMIZER): tensor for key, tensor in tensors.items() if key.startswith(OPTIMIZER)}
    optimizer.load_state(state)


def _holder(plan: Plan, each: TrainingSeat) -> StateHolder:
    """Return what a checkpoint holds of a seat: with a collector only its buffers."""
    return Buffers(each.runner.buffers) if plan.collector else each.runner


def load_state(
    task: WorkerTask,
    described: ModelDescription,
    frozen: dict[str, torch.Tensor],
    dealt: Plan,
) -> WorkerState:
    """Load the units of all seats, and what the collector holds, from the initial weights.

    frozen: weights that this process holds, by name; they are used and not loaded again. dealt: the first plan, which
    dealt the lanes their samples.
    """
    plan, device = task.plan, torch.device(task.accelerator)
    weights, undecayed = described.weights(), undecayed_parameters(described.whole)
    seats: dict[tuple[str, int], TrainingSeat] = {}
    for seat in seats_of(plan, task.device):
        module = skeleton(described.config, task.model)
        runner = SegmentRunner(described.graph, seat.segment.units, module, device)
        regate = gate_heads(runner, plan, described.whole, described.config)
        if seat.segment.trained != seat.segment.units:
            runner.train_only(seat.segment.trained, described.trainable_of(seat.segment.trained))
        if seat.segment.recompute:
            runner.recompute()
        runner.load(weights, frozen)
        runner.train()
        made = new_seat(
            seat,
            runner,
            _batches(task, seat, dealt),
            NamedOptimizer(runner.parameters, task.training, undecayed=undecayed, steps=not plan.collector),
            tied=tied_holders(described.tied, seat.lane),
            collected=bool(plan.collector),
        )
        made.regate, seats[seat.lane.name, seat.index] = regate, made
    return WorkerState(
        seats,
        _collector(task, described, weights, dealt),
        _averages(task, described),
        _averager(task, described, dealt),
        described.constants,
    )


def _collector(task: WorkerTask, described: ModelDescription, weights: WeightReader, dealt: Plan) -> Collector | None:
    plan = task.plan
    if task.device != plan.collector:
        return None
    found = weights.read({n for seat in seats_of(plan) for n in described.trainable_of(seat.segment.trained)})
    device = torch.device(task.accelerator)
    parameters = {name: nn.Parameter(found[name].to(device)) for name in described.trainable if name in found}
    shares, undecayed = _lane_weights(task, dealt), undecayed_parameters(described.whole)
    return Collector(plan, shares, described.state, parameters, task.training, undecayed)


def _averages(task: WorkerTask, described: ModelDescription) -> Averages | None:
    if not task.plan.average_every_rounds:
        return None
    tensors = {**described.trainable, **dict(described.whole.named_buffers())}
    return Averages(task.plan, described.state, parts_of(described.state, tensors))


def _averager(task: WorkerTask, described: ModelDescription, dealt: Plan) -> Averager | None:
    plan = task.plan
    if not plan.average_every_rounds or task.device != averaging_device(plan):
        return None
    return Averager(plan, _lane_weights(task, dealt), described.state, moment_decays(task.training))


def _lane_weights(task: WorkerTask, dealt: Plan) -> dict[str, float]:
    return lane_weights(task.plan, lane_samples(dealt, Path(task.data_folder), task.local_samples))


def _batches(task: WorkerTask, seat: Seat, dealt: Plan) -> Batches | None:
    """Return the lane's samples for a seat that reads inputs or labels; None for others, which may lack the data."""
    if not (seat.is_first or seat.is_last):
        return None
    device, local = torch.device(task.accelerator), bool(task.local_samples)
    return Batches(Path(task.data_folder), dealt, seat.lane, task.seed, device, local)


_MADE: dict[tuple[str, str], ModelDescription] = {}
"""Made once for all workers that are forked from one server: a worker's first model costs it 0.3 s of processor time,
most of it in PEFT's and transformers' first calls."""


def described(folder: Path, request: ModelRequest) -> ModelDescription:
    """Return the model that was prepared in a folder, which holds the same as long as this process lives."""
    return _MADE.setdefault((str(folder), json_io.text(request)), ModelDescription(folder, request))


def warm_up(folder: str, request: str) -> None:
    """Make what a worker needs of a model before it knows its part. request: a ModelRequest as JSON."""
    found = described(Path(folder), json_io.parse(ModelRequest, request, "model"))
    if source_folder(found.request) is not None:
        base_skeleton(found.config, found.request)
    _ = found.whole, found.state, found.tied, found.trainable, found.unit_items
