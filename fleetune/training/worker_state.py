"""What a worker holds: the seats of its device, and what all lanes share if it is a collector or averages them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import nn
from transformers import PretrainedConfig

from fleetune.contracts.plan import Plan
from fleetune.models.gates import gate_segment
from fleetune.models.graph import Graph, parse_graph
from fleetune.models.init_weights import INIT_WEIGHTS
from fleetune.models.segment import SegmentRunner
from fleetune.models.skeleton import base_skeleton, saved_configuration, skeleton
from fleetune.models.source import source_folder
from fleetune.models.units import state_by_unit, tied_parameters_by_unit
from fleetune.models.weights import WeightReader
from fleetune.program import DeviceProgram, Seat, lower, seats_of
from fleetune.program.lower import averaging_device
from fleetune.training.averaging import Averager, Averages, parts_of
from fleetune.training.batches import Batches, lane_samples, lane_weights
from fleetune.training.checkpoints import Buffers, StateHolder, restore, shard_name
from fleetune.training.gradients import tied_holders
from fleetune.training.hub import Collector
from fleetune.training.optimizer import NamedOptimizer
from fleetune.training.seat import TrainingSeat, new_seat
from fleetune.training.task import WorkerTask


@dataclass(frozen=True)
class ModelDescription:
    """The prepared model without its weights."""

    task: WorkerTask

    @property
    def folder(self) -> Path:
        """The folder of the prepared model."""
        return Path(self.task.model_folder)

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
        return skeleton(self.config, self.task.model)

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

    def program(self, plan: Plan) -> DeviceProgram:
        """Return the device's steps in a plan."""
        trainable = {unit for unit, names in self.state.items() if any(name in self.trainable for name in names)}
        return lower(plan, trainable=trainable, tied=self.tied).of(self.task.device)

    def weights(self) -> WeightReader:
        """Return what reads the weights that training starts from."""
        base = base_skeleton(self.config, self.task.model)
        return WeightReader(base, source_folder(self.task.model), self.folder / INIT_WEIGHTS)


@dataclass(frozen=True, slots=True)
class WorkerState:
    """Everything of one worker that a round changes."""

    seats: Mapping[tuple[str, int], TrainingSeat]
    """(Lane, segment) -> seat."""
    collector: Collector | None
    averages: Averages | None
    averager: Averager | None

    def deal(self, plan: Plan, described: ModelDescription) -> None:
        """Let the seats train what another plan says; a collector owns all optimizer state, so that nothing moves."""
        training = described.task.training
        for seat in seats_of(plan, described.task.device):
            each = self.seats[seat.lane.name, seat.index]
            each.optimizer.clear_gradients()
            each.seat = seat
            each.runner.train_only(seat.segment.trained, described.trainable_of(seat.segment.trained))
            each.optimizer = NamedOptimizer(each.runner.parameters, training, steps=False)
        if self.collector is not None:
            self.collector.deal(plan)

    def shards(self, plan: Plan) -> dict[str, tuple[StateHolder, NamedOptimizer]]:
        """Return what this worker writes into each file of a checkpoint: its groups' states as their leader, or a
        collector's.
        """
        found: dict[str, tuple[StateHolder, NamedOptimizer]] = {}
        for each in self.seats.values():
            seat = each.seat
            if seat.is_leader and not (plan.collector and seat.lane != plan.lanes[0]):
                lanes = 1 if plan.collector else len(plan.lanes)
                found[shard_name(seat.lane.name, seat.index, lanes)] = (_holder(plan, each), each.optimizer)
        if self.collector is not None:
            found["collector"] = (self.collector, self.collector.optimizer)
        return found

    def restore(self, plan: Plan, folder: Path) -> None:
        """Load a checkpoint into all seats and the collector; TryAgain if it is damaged or lacks a tensor."""
        for each in self.seats.values():
            restore(folder, _holder(plan, each), each.optimizer, each.seat.lane.name)
        if self.collector is not None:
            restore(folder, self.collector, self.collector.optimizer)


def _holder(plan: Plan, each: TrainingSeat) -> StateHolder:
    """Return what a checkpoint holds of a seat: with a collector only its buffers."""
    return Buffers(each.runner.buffers) if plan.collector else each.runner


def load_state(task: WorkerTask, described: ModelDescription) -> WorkerState:
    """Load the units of all seats, and what the collector holds, from the initial weights or the checkpoint."""
    plan, device = task.plan, torch.device(task.accelerator)
    weights, frozen = described.weights(), dict[str, torch.Tensor]()
    seats: dict[tuple[str, int], TrainingSeat] = {}
    for seat in seats_of(plan, task.device):
        module = skeleton(described.config, task.model)
        runner = SegmentRunner(described.graph, seat.segment.units, module, device)
        if not all(gate.is_neutral for gate in plan.gates):
            operations = {gate.subnet: gate.operations for gate in plan.gates}
            gate_segment(runner, operations, described.whole, described.config)
        if seat.segment.trained != seat.segment.units:
            runner.train_only(seat.segment.trained, described.trainable_of(seat.segment.trained))
        runner.load(weights, frozen)
        runner.train()
        seats[seat.lane.name, seat.index] = new_seat(
            seat,
            runner,
            _batches(task, seat),
            task.training,
            tied=tied_holders(described.tied, seat.lane),
            collected=bool(plan.collector),
        )
    state = WorkerState(
        seats, _collector(task, described, weights), _averages(task, described), _averager(task, described)
    )
    if task.state is not None:
        state.restore(plan, Path(task.state))
    return state


def _collector(task: WorkerTask, described: ModelDescription, weights: WeightReader) -> Collector | None:
    plan = task.plan
    if task.device != plan.collector:
        return None
    trained = set[str]()
    for seat in seats_of(plan):
        trained |= described.trainable_of(seat.segment.trained)
    found = weights.read(trained)
    parameters = {
        name: nn.Parameter(found[name].to(torch.device(task.accelerator)))
        for name in described.trainable
        if name in found
    }
    return Collector(plan, _lane_weights(task), described.state, parameters, task.training)


def _averages(task: WorkerTask, described: ModelDescription) -> Averages | None:
    if not task.plan.average_every_rounds:
        return None
    tensors = {**described.trainable, **dict(described.whole.named_buffers())}
    return Averages(task.plan, described.state, parts_of(described.state, tensors))


def _averager(task: WorkerTask, described: ModelDescription) -> Averager | None:
    plan = task.plan
    if not plan.average_every_rounds or task.device != averaging_device(plan):
        return None
    return Averager(plan, _lane_weights(task), described.state)


def _lane_weights(task: WorkerTask) -> dict[str, float]:
    return lane_weights(lane_samples(task.plan, Path(task.data_folder), task.local_samples))


def _batches(task: WorkerTask, seat: Seat) -> Batches | None:
    """Return the lane's samples for a seat that reads inputs or labels; None for others, which may lack the data."""
    if not (seat.is_first or seat.is_last):
        return None
    device, local = torch.device(task.accelerator), bool(task.local_samples)
    return Batches(Path(task.data_folder), task.plan, seat.lane, task.seed, device, local)
