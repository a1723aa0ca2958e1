"""Controls of plans with several lanes, by loops of plain PyTorch: they use nothing of the partitioned runtime.

Only the definition of randomness comes from the library: which rows a lane owns, its seed, and the seeds of units.
"""

import copy
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fleetune.contracts.plan import Plan
from fleetune.contracts.training_request import TrainingRequest
from fleetune.data.prepared_data import PreparedData
from fleetune.models.randomness import unit_seed
from fleetune.training.batches import lane_batch, lane_rows, lane_samples, lane_seed
from tests.support.training.decay import trainer_groups
from tests.support.training.plain_half import compute_in_half
from tests.support.training.runs import Prepared
from tests.support.training.unsplit_training import Control, loss_of, seed_generator, targets_of


class LaneModel:
    """One lane's model and data."""

    def __init__(self, ready: Prepared, model: nn.Module, plan: Plan, lane: int, local: Path | None = None) -> None:
        """local: the lane's own prepared data; None: it is dealt rows of the common ones."""
        mixed = ready.model.mixed_precision
        self.model = (compute_in_half(model, mixed) if mixed else model).train()
        self.data = PreparedData(local or ready.folders.data)
        count = self.data.size("train")
        self.rows = lane_rows(plan, plan.lanes[lane], count, ready.seed) if local is None else np.arange(count)
        self.samples = len(self.rows) if local else lane_samples(plan, ready.folders.data, {})[plan.lanes[lane].name]
        self.lane, self.local, self.run_seed = plan.lanes[lane], local is not None, ready.seed
        self.seed = lane_seed(plan, plan.lanes[lane], ready.seed)
        self.plan, self.here = plan, {"round": 0, "micro_batch": 0}
        self.micro_batches = plan.lanes[lane].micro_batches or plan.micro_batches
        for unit in ready.units:
            model.get_submodule(unit).register_forward_pre_hook(self._reseed(unit))
        self.optimizer: torch.optim.Optimizer | None = None

    def backward(self, round: int, step: int | None = None) -> float:
        """Add the gradients of the lane's batch to the model's; return the mean loss.

        step: number of the lane's own step; None: it takes one in every round.
        """
        batch = round if step is None else step
        drawn = lane_batch(self.plan, self.lane, self.rows, self.run_seed, batch, self.local)
        rows = {k: torch.from_numpy(v) for k, v in self.data.rows("train", drawn).items()}
        total, size = 0.0, self.plan.micro_batch_samples
        for micro_batch in range(self.micro_batches):
            self.here.update(round=round, micro_batch=micro_batch)
            part = {k: v[micro_batch * size : (micro_batch + 1) * size] for k, v in rows.items()}
            loss = loss_of(self.model, part, self.data.task) / targets_of(rows["labels"], self.data.task)
            loss.backward()
            total += float(loss.detach())
        return total

    def _reseed(self, unit: str) -> Any:
        def hook(module: nn.Module, inputs: Any) -> None:
            seed = unit_seed(self.seed, self.here["round"], self.here["micro_batch"], unit)
            seed_generator(seed, next(self.model.parameters()).device)

        return hook


def optimizer_of(model: nn.Module, training: TrainingRequest) -> torch.optim.Optimizer:
    """Return the optimizer of a request for a model's trained parameters."""
    return torch.optim.AdamW(trainer_groups(model, training), lr=training.learning_rate, fused=True)


def train_lane(lane: LaneModel, training: TrainingRequest) -> Control:
    """Train one lane alone."""
    optimizer = optimizer_of(lane.model, training)
    control = Control()
    for round in range(training.rounds):
        control.losses.append(lane.backward(round))
        optimizer.step()
        optimizer.zero_grad()
    control.state = {k: v.detach().clone() for k, v in lane.model.state_dict().items()}
    return control


def train_by_blocks(
    lanes: list[LaneModel],
    whole: nn.Module,
    training: TrainingRequest,
    blocks: Sequence[Collection[str]],
    *,
    swapped: Collection[int] = (),
) -> Control:
    """LoLa-DEFT's round: one step, whose gradient for a block comes from the batch of the device assigned to it.

    blocks: names of the parameters that each lane trains. swapped: rounds in which lanes have them in reverse order.
    """
    optimizer = optimizer_of(whole, training)
    control = Control()
    sizes = [lane.samples for lane in lanes]
    for round in range(training.rounds):
        losses = []
        for lane, block in zip(lanes, blocks[::-1] if round in swapped else blocks, strict=True):
            lane.model.load_state_dict(whole.state_dict())
            lane.model.zero_grad()
            losses.append(lane.backward(round))
            own = dict(lane.model.named_parameters())
            for name, parameter in whole.named_parameters():
                if name in block:
                    parameter.grad = own[name].grad
        optimizer.step()
        optimizer.zero_grad()
        control.losses.append(sum(loss * size / sum(sizes) for loss, size in zip(losses, sizes, strict=True)))
    control.state = {k: v.detach().clone() for k, v in whole.state_dict().items()}
    return control


def lane_models(ready: Prepared, whole: nn.Module, plan: Plan, local: Sequence[Path] = ()) -> list[LaneModel]:
    """Return a copy of the model for each lane. local: their own prepared data; empty: they are dealt rows."""
    folders = local or [None] * len(plan.lanes)
    return [LaneModel(ready, copy.deepcopy(whole), plan, k, folder) for k, folder in enumerate(folders)]


def train_federated(
    lanes: list[LaneModel], training: TrainingRequest, *, lost: Mapping[str, range] | None = None
) -> Control:
    """FedAvg of separately trained models; moments of the optimizers are averaged like parameters, without the bias of
    their lanes' counts of steps where these differ.

    lost: lane -> the rounds without it; it is not the first one, whose state it has afterwards.
    """
    plan, without = lanes[0].plan, lost or {}
    for lane in lanes:
        lane.optimizer = optimizer_of(lane.model, training)
    names = {id(lane): each.name for lane, each in zip(lanes, plan.lanes, strict=True)}
    control = Control()
    taken = dict.fromkeys(names.values(), 0)
    for round in range(training.rounds):
        for lane in lanes:
            if round == without.get(names[id(lane)], range(0)).stop > 0:
                assert lane.optimizer is not None and lanes[0].optimizer is not None
                lane.model.load_state_dict(lanes[0].model.state_dict())
                lane.optimizer.load_state_dict(copy.deepcopy(lanes[0].optimizer.state_dict()))
        left = [lane for lane in lanes if round not in without.get(names[id(lane)], range(0))]
        sizes = [len(lane.rows) for lane in left]
        weights = [size / sum(sizes) for size in sizes]
        at = round % plan.average_every_rounds
        at_work = [(lane, w) for lane, w in zip(left, weights, strict=True) if at < (lane.lane.rounds or at + 1)]
        whole = sum(weight for _, weight in at_work)
        total = 0.0
        for lane, weight in at_work:
            name = names[id(lane)]
            total += weight / whole * lane.backward(round, taken[name] if lane.lane.rounds else round)
            assert lane.optimizer is not None
            lane.optimizer.step()
            lane.optimizer.zero_grad()
            taken[name] += 1
        control.losses.append(total)
        if (round + 1) % plan.average_every_rounds == 0 or round + 1 == training.rounds:
            _average(left, weights)
    control.state = {k: v.detach().clone() for k, v in lanes[0].model.state_dict().items()}
    return control


def _average(lanes: list[LaneModel], weights: list[float]) -> None:
    for group in zip(*(lane.model.parameters() for lane in lanes), strict=True):
        if group[0].requires_grad:
            _to_mean([p.data for p in group], weights)
            states = [lane.optimizer.state[p] for lane, p in zip(lanes, group, strict=True) if lane.optimizer]
            most = max(float(state["step"]) for state in states)
            for kind, decay in (("exp_avg", 0.9), ("exp_avg_sq", 0.999)):
                for state in states:
                    state[kind].mul_((1 - decay**most) / (1 - decay ** float(state["step"])))
                _to_mean([state[kind] for state in states], weights)
            for state in states:
                state["step"].fill_(most)
    for buffers in zip(*(lane.model.named_buffers() for lane in lanes), strict=True):
        if "running_" in buffers[0][0]:
            _to_mean([buffer for _, buffer in buffers], weights)
        elif "num_batches_tracked" in buffers[0][0]:
            most = max(int(buffer) for _, buffer in buffers)
            for _, buffer in buffers:
                buffer.fill_(most)


def _to_mean(tensors: list[torch.Tensor], weights: list[float]) -> None:
    mean = sum((t * w for t, w in zip(tensors, weights, strict=True)), torch.zeros(()))
    for tensor in tensors:
        tensor.copy_(mean)
