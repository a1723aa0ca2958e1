"""The control: the unsplit model, trained by a loop of plain PyTorch. It uses nothing of the partitioned runtime.

Only the definition of randomness comes from the library: the seeds of units and the order of samples.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from fleetune.contracts.training_request import TrainingRequest
from fleetune.data.prepared_data import PreparedData, batch_indices
from fleetune.models.randomness import unit_seed
from tests.support.training.decay import trainer_groups
from tests.support.training.plain_half import scaler_of


@dataclass
class Control:
    """Losses and final state of an unsplit run."""

    losses: list[float] = field(default_factory=list)
    state: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Order:
    """The order of the control's additions; another order may change nothing but rounding."""

    shards: Sequence[tuple[int, int]]
    """The parts of a micro-batch whose gradients are rounded one by one; batch norms see one part."""
    samples: int | None = None
    """Seed of another order of samples in each shard; of models without dropout, whose masks stay where they are."""
    micro_batches: bool = False
    """True to add micro-batches in reverse; only for models without batch norms, whose statistics move with each."""

    def rows(self, start: int, shard: tuple[int, int]) -> list[int]:
        """Return the rows of the batch in a shard of the micro-batch that begins at `start`."""
        rows = list(range(start + shard[0], start + shard[1]))
        if self.samples is not None:
            random.Random(f"{self.samples}/{start}/{shard}").shuffle(rows)
        return rows


def train_unsplit(
    model: nn.Module, data: PreparedData, training: TrainingRequest, seed: int, units: Sequence[str], order: Order
) -> Control:
    """Train one model with micro-batch accumulation.

    It computes where the model is, and its state ends on the CPU. units: names of modules before which torch's
    generators are seeded anew.
    """
    scaler = scaler_of(model)
    device = next(model.parameters()).device
    model.train()
    here = {"round": 0, "micro_batch": 0}
    for unit in units:
        module = model.get_submodule(unit)
        module.register_forward_pre_hook(
            lambda m, a, unit=unit: seed_generator(unit_seed(seed, here["round"], here["micro_batch"], unit), device)
        )
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = _optimizer(model, training)
    control = Control()
    for round in range(training.rounds):
        indices = batch_indices(data.size("train"), training.batch_samples, seed, round)
        rows = {k: torch.from_numpy(v).to(device) for k, v in data.rows("train", indices).items()}
        targets = targets_of(rows["labels"], data.task)
        total = 0.0
        for micro_batch in range(training.micro_batches)[:: -1 if order.micro_batches else 1]:
            here.update(round=round, micro_batch=micro_batch)
            start = micro_batch * training.micro_batch_samples
            for span in order.shards:
                part = {k: v[order.rows(start, span)] for k, v in rows.items()}
                loss = loss_of(model, part, data.task) / targets
                scaler.scale(loss).backward()
                total += float(loss.detach())
        scaler.unscale_(optimizer)
        if training.clip_norm is not None:
            clip_grad_norm_(parameters, training.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = _rate(training, round)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        control.losses.append(total)
    control.state = {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}
    return control


def seed_generator(seed: int, device: torch.device) -> None:
    """Seed the generator of a device, as `torch.manual_seed` does, which takes a hundred times as long."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def loss_of(model: nn.Module, rows: dict[str, torch.Tensor], task: str) -> torch.Tensor:
    """Return the summed loss of these rows."""
    labels = rows["labels"]
    logits = model(**{k: v for k, v in rows.items() if k != "labels"}).logits
    if task.endswith("regression"):
        return ((logits.squeeze(1) - labels) ** 2).sum()
    if "multi-label" in task:
        return nn.BCEWithLogitsLoss(reduction="sum")(logits, labels)
    if task == "seq2seq":
        logits = logits.transpose(1, 2)
    if task == "causal-lm":
        logits, labels = logits[:, :-1].transpose(1, 2), labels[:, 1:]
    return nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")


def targets_of(labels: torch.Tensor, task: str) -> int:
    """Return the number of targets that a loss is the mean over."""
    if labels.is_floating_point():
        return labels.numel()
    return int(((labels[:, 1:] if task == "causal-lm" else labels) != -100).sum())


def _optimizer(model: nn.Module, training: TrainingRequest) -> torch.optim.Optimizer:
    parameters = trainer_groups(model, training)
    if training.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=training.learning_rate, momentum=training.momentum, fused=True)
    return torch.optim.AdamW(parameters, lr=training.learning_rate, fused=True)


def _rate(training: TrainingRequest, round: int) -> float:
    if training.schedule == "constant":
        return training.learning_rate
    assert training.schedule == "linear" and training.warmup_rounds == 0
    return training.learning_rate * (1 - round / training.rounds)
