"""The state that a commit changes: parameters, by an optimizer, and running statistics of batch norms.

Until the commit the segment's own buffers, which checkpoints hold, stay as the last committed round left them, and a
round that is started anew starts from them. This holds for running means and variances and for the number of batches,
of every torch batch or instance norm; other modules must not change their buffers in a forward.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fleetune.contracts.training_request import WEIGHTS, TrainingRequest
from fleetune.errors import Refused
from fleetune.models.segment import SegmentRunner

AVERAGED, COUNT = ("running_mean", "running_var"), "num_batches_tracked"


def is_statistic(name: str) -> bool:
    """Return whether a buffer is a running statistic of a batch norm, by its name."""
    return name.rsplit(".", 1)[-1] in (*AVERAGED, COUNT)


def learning_rate(training: TrainingRequest, round: int) -> float:
    """Return the learning rate of a round (counted from 0): a linear warm-up, then the schedule to the last round."""
    peak = training.learning_rate
    if round < training.warmup_rounds:
        return peak * (round + 1) / training.warmup_rounds
    if training.schedule == "constant":
        return peak
    done = (round - training.warmup_rounds) / max(1, training.rounds - training.warmup_rounds)
    return peak * (1.0 - done if training.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done)))


class NamedOptimizer:
    """An optimizer over named parameters; its state is saved and loaded by parameter name."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        training: TrainingRequest,
        *,
        undecayed: Collection[str] = (),
        steps: bool = True,
    ) -> None:
        """undecayed: names of biases and norms, see `models.decay`, which decay only if training.weight_decay_on is
        `all`. steps: False if another device steps these parameters: only their gradients are held.
        """
        self._named = {name: p for name, p in parameters.items() if p.requires_grad}
        self._training = training
        self._optimizer = _optimizer(self._groups(undecayed), training) if steps else None

    def _groups(self, undecayed: Collection[str]) -> list[dict[str, Any]]:
        """Return torch's parameter groups: what decays, and what does not."""
        spared = {n for n in self._named if n in undecayed} if self._training.weight_decay_on == WEIGHTS else set()
        decayed = [p for name, p in self._named.items() if name not in spared]
        rest = [p for name, p in self._named.items() if name in spared]
        groups = ({"params": decayed}, {"params": rest, "weight_decay": 0.0})
        return [group for group in groups if group["params"]]

    def clear_gradients(self) -> None:
        """Drop all gradients, such as those of a round that was not committed."""
        for parameter in self._named.values():
            parameter.grad = None

    def gradients(self) -> dict[str, torch.Tensor]:
        """Return gradients by name; a parameter that the loss does not reach has none, and no step changes it."""
        return {name: p.grad for name, p in self._named.items() if p.grad is not None}

    def set_gradients(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Replace the gradients of these parameters."""
        for name, gradient in gradients.items():
            self._named[name].grad = gradient

    def step(self, round: int, scale: float) -> None:
        """Take one optimizer step with gradients times `scale`, then drop them."""
        if self._optimizer is None:
            return
        gradients = self.gradients()
        if gradients and scale != 1.0:
            torch._foreach_mul_(list(gradients.values()), scale)
        if self._training.optimizer == "sgd" and self._training.momentum:
            for name in gradients:  # torch's fused step takes buffers for all of them or for none
                self.slot("momentum_buffer", name)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self._training, round)
        self._optimizer.step()
        self.clear_gradients()

    def state(self) -> dict[str, torch.Tensor]:
        """Return the optimizer state as tensors named `KIND:PARAMETER`."""
        return {f"{kind}:{name}": value for name in self._named for kind, value in self.state_of(name).items()}

    def state_of(self, name: str) -> dict[str, torch.Tensor]:
        """Return the state of one parameter by kind; empty before its first step."""
        held = self._optimizer.state.get(self._named[name], {}) if self._optimizer else {}
        return {kind: torch.as_tensor(value).detach() for kind, value in held.items() if value is not None}

    def slot(self, kind: str, name: str) -> torch.Tensor | None:
        """Return the tensor of a parameter's state, made of zeros if it is new; None for a parameter of others."""
        parameter = self._named.get(name)
        if parameter is None or self._optimizer is None:
            return None
        held = self._optimizer.state[parameter]
        if held.get(kind) is None:
            held[kind] = torch.zeros((), device=parameter.device) if kind == "step" else torch.zeros_like(parameter)
        found: torch.Tensor = held[kind]
        return found

    def load_state(self, kept: Mapping[str, torch.Tensor]) -> None:
        """Load what `state` returned, for the parameters that this optimizer has."""
        for key, value in kept.items():
            kind, name = key.split(":", 1)
            parameter = self._named.get(name)
            if parameter is not None and self._optimizer is not None:
                if value.numel() > 1 and value.shape != parameter.shape:
                    raise Refused(f"optimizer state {key} is {list(value.shape)} of {list(parameter.shape)}")
                self._optimizer.state[parameter][kind] = value.clone().to(parameter.device)


def _optimizer(groups: list[dict[str, Any]], training: TrainingRequest) -> torch.optim.Optimizer | None:
    """Return torch's fused optimizer, which passes over each parameter once and makes no temporary copies."""
    if not groups:
        return None
    if training.optimizer == "sgd":
        return torch.optim.SGD(
            groups,
            lr=training.learning_rate,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
            fused=True,
        )
    return torch.optim.AdamW(
        groups,
        lr=training.learning_rate,
        betas=(training.beta1, training.beta2),
        eps=training.epsilon,
        weight_decay=training.weight_decay,
        fused=True,
    )


def moment_decays(training: TrainingRequest) -> dict[str, float]:
    """Return kind of moment -> its decay, of the moments that are corrected by their count of steps."""
    return {} if training.optimizer == "sgd" else {"exp_avg": training.beta1, "exp_avg_sq": training.beta2}


class BatchNormStatistics:
    """Running statistics of one segment; from now on its modules update copies, which `commit` writes back."""

    def __init__(self, segment: SegmentRunner) -> None:
        self._kept: list[tuple[nn.Module, str, torch.Tensor]] = []
        norms = {id(m): m for leaf in segment.modules.values() for m in leaf.modules() if isinstance(m, _NormBase)}
        for norm in norms.values():
            for name in (*AVERAGED, COUNT):
                kept = norm._buffers.get(name)
                if kept is not None:
                    self._kept.append((norm, name, kept))
                    norm._buffers[name] = kept.clone()

    def committed(self, buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the committed statistics by their names among `buffers`."""
        own = {id(kept) for _, _, kept in self._kept}
        return {name: buffer for name, buffer in buffers.items() if id(buffer) in own}

    def start(self) -> None:
        """Reset the working copies to the committed statistics."""
        for norm, name, kept in self._kept:
            self._copy(norm, name).copy_(kept)

    def commit(self) -> None:
        """Write the working copies back as the committed statistics."""
        for norm, name, kept in self._kept:
            kept.copy_(self._copy(norm, name))

    @staticmethod
    def _copy(norm: nn.Module, name: str) -> torch.Tensor:
        found = norm._buffers[name]
        assert found is not None, "the buffer existed when the segment was loaded"
        return found
