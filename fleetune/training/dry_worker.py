"""A worker whose rounds are dry: `python -m fleetune.training.dry_worker --task FILE`.

It obeys its plan step by step and message by message, but computes nothing: forwards and backwards make zeros of the
right shapes. What such a round takes is what messages, optimizer steps and the protocol take. Nothing is learned by it.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fleetune.launching import Command, Job, Launcher
from fleetune.models.operations import SizeEvaluator
from fleetune.models.randomness import RandomContext
from fleetune.models.segment import SegmentRunner, Values
from fleetune.training.worker import main

DRY_WORKER = "fleetune.training.dry_worker"


class DryLauncher:
    """Starts workers as dry ones, by another launcher."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def start(self, command: Command) -> Job:
        """Start a command; TryAgain when the place cannot."""
        return self._launcher.start(replace(command, module=DRY_WORKER))


class _Zeros(torch.autograd.Function):
    """Zeros that depend on other tensors, whose gradients are zeros."""

    @staticmethod
    def forward(context: Any, reached: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return what follows the first `reached` tensors, which it then depends on."""
        context.given = tensors
        context.reached = reached
        return tuple(each.detach() for each in tensors[reached:])

    @staticmethod
    def backward(context: Any, *_: Any) -> tuple[torch.Tensor | None, ...]:
        """Return zeros for the tensors that are depended on."""
        first, rest = context.given[: context.reached], context.given[context.reached :]
        return (None, *map(torch.zeros_like, first), *([None] * len(rest)))


class DryForwards:
    """Runs segments without computing, in the place of `SegmentRunner.run`, but for those that look for what a model
    calls, on the meta device."""

    def __init__(self, run: Callable[..., Values]) -> None:
        self._run = run
        self._gradients: dict[nn.Parameter, torch.Tensor] = {}

    def run(
        self,
        runner: SegmentRunner,
        values: Mapping[int, torch.Tensor],
        samples: int,
        draws: RandomContext | None = None,
    ) -> Values:
        """Return the segment's outputs, zeros that depend on its inputs; every trained parameter has a gradient."""
        if runner.device.type == "meta":
            return self._run(runner, values, samples, draws)
        for parameter in runner.parameters.values():
            if parameter.requires_grad:
                self._reach(parameter)
        made = {n: _zeros(runner, n, samples) for n in runner.output_values if n not in values}
        carrying = [number for number in made if runner.graph.value(number).gradient]
        reached = [value for value in values.values() if value.requires_grad]
        if reached and carrying:
            outputs = _Zeros.apply(len(reached), *reached, *(made[number] for number in carrying))
            made |= zip(carrying, outputs, strict=True)
        return {number: values[number] if number in values else made[number] for number in runner.output_values}

    def _reach(self, parameter: nn.Parameter) -> None:
        """Let a parameter have a gradient of zeros, made once: those of rounds that compute take the memory of the ones
        before them. Whoever waits for its gradient is told.
        """
        if parameter.grad is None:
            if parameter not in self._gradients:
                self._gradients[parameter] = torch.zeros_like(parameter)
            parameter.grad = self._gradients[parameter]
        for told in (parameter._post_accumulate_grad_hooks or {}).values():
            told(parameter)


def _zeros(runner: SegmentRunner, number: int, samples: int) -> torch.Tensor:
    value, sizes = runner.graph.value(number), SizeEvaluator(runner.graph.batch)
    shape = [sizes.evaluate(size, samples) for size in value.shape]
    return torch.zeros(shape, dtype=getattr(torch, value.dtype), device=runner.device)


if __name__ == "__main__":
    dry = DryForwards(SegmentRunner.run)
    SegmentRunner.run = lambda *given, **named: dry.run(*given, **named)  # type: ignore[method-assign]
    sys.exit(main())
