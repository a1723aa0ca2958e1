"""How parameters move once a round is committed."""

import math
from collections.abc import Mapping

import torch
from torch import nn

from fleetune.contracts.run_config import TrainingRequest


def learning_rate(training: TrainingRequest, round: int) -> float:
    """The rate of a round (counted from 0): a linear warm-up, then the schedule down to the last round."""
    peak = training.learning_rate
    if round < training.warmup_rounds:
        return peak * (round + 1) / training.warmup_rounds
    if training.schedule == "constant":
        return peak
    done = (round - training.warmup_rounds) / max(1, training.rounds - training.warmup_rounds)
    return peak * (1.0 - done if training.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done)))


class Updates:
    """An optimizer over named parameters, whose state travels by name."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], training: TrainingRequest) -> None:
        self._named = {name: p for name, p in parameters.items() if p.requires_grad}
        self._training = training
        self._optimizer = _optimizer(list(self._named.values()), training)

    def start(self) -> None:
        """Forget gradients of a round that was not committed."""
        for parameter in self._named.values():
            parameter.grad = None

    def gradients(self) -> dict[str, torch.Tensor]:
        """Gradients by name; a parameter that the loss does not reach has none, and no step moves it."""
        return {name: p.grad for name, p in self._named.items() if p.grad is not None}

    def replace(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Take these tensors for gradients."""
        for name, gradient in gradients.items():
            self._named[name].grad = gradient

    def apply(self, round: int, scale: float) -> None:
        """One optimizer step, then no gradients."""
        if self._optimizer is None:
            return
        if scale != 1.0:
            torch._foreach_mul_(list(self.gradients().values()), scale)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self._training, round)
        self._optimizer.step()
        self.start()

    def state(self) -> dict[str, torch.Tensor]:
        """Optimizer state as tensors named `KIND:PARAMETER`."""
        kept: dict[str, torch.Tensor] = {}
        for name, parameter in self._named.items():
            for kind, value in (self._optimizer.state.get(parameter, {}) if self._optimizer else {}).items():
                if value is not None:
                    kept[f"{kind}:{name}"] = torch.as_tensor(value).detach()
        return kept

    def restore(self, kept: Mapping[str, torch.Tensor]) -> None:
        """Take up state that `state` gave, for the parameters that live here."""
        for key, value in kept.items():
            kind, name = key.split(":", 1)
            parameter = self._named.get(name)
            if parameter is not None and self._optimizer is not None:
                self._optimizer.state[parameter][kind] = value.clone().to(parameter.device)


def _optimizer(parameters: list[nn.Parameter], training: TrainingRequest) -> torch.optim.Optimizer | None:
    """torch's fused optimizers: one pass over each parameter and no temporary copies of it."""
    if not parameters:
        return None
    if training.optimizer == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=training.learning_rate,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
            fused=True,
        )
    return torch.optim.AdamW(
        parameters,
        lr=training.learning_rate,
        betas=(training.beta1, training.beta2),
        eps=training.epsilon,
        weight_decay=training.weight_decay,
        fused=True,
    )
