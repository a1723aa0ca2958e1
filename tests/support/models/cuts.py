"""Recorded models that are cut at random."""

import random

import torch

from fleetune.models.randomness import RandomContext
from fleetune.models.segment import SegmentRunner, Values
from tests.support.models.instances import Recorded

Outcome = tuple[torch.Tensor, dict[str, torch.Tensor]]


def draws(samples: int) -> RandomContext:
    """Return the draws of one micro-batch, held by one device."""
    return RandomContext(5, 1, 2, 0, samples)


def cut(ready: Recorded, chance: random.Random) -> list[SegmentRunner]:
    """Return the model in up to four segments, cut at random."""
    borders = sorted({0, len(ready.units), *(chance.randrange(1, len(ready.units)) for _ in range(3))})
    made = [ready.segment(ready.units[a:b]) for a, b in zip(borders, borders[1:], strict=False)]
    for segment in made:
        segment.train()
    return made


def run_cut(segments: list[SegmentRunner], given: dict[str, torch.Tensor], samples: int) -> Outcome:
    """Return logits, and gradients of their sum of squares by name, passing only the values that cross the cuts."""
    graph = segments[0].graph
    values: Values = {number: given[name] for name, number in graph.inputs.items()}
    history: list[tuple[Values, Values]] = []
    for segment in segments:
        inputs = {n: values[n].detach() for n in segment.input_values}
        inputs = {n: v.requires_grad_() if graph.value(n).gradient else v for n, v in inputs.items()}
        values = segment.run(inputs, samples, draws(samples))
        history.append((inputs, values))
    (values[graph.output] ** 2).sum().backward()
    logits = values[graph.output].detach()
    for (inputs, _), (_, outputs) in zip(reversed(history[1:]), reversed(history[:-1]), strict=True):
        reached = [n for n, v in outputs.items() if v.requires_grad and inputs[n].grad is not None]
        if reached:
            torch.autograd.backward([outputs[n] for n in reached], [inputs[n].grad for n in reached])
    found: dict[str, torch.Tensor] = {}
    for segment in segments:
        for name, parameter in segment.parameters.items():
            if parameter.requires_grad and parameter.grad is not None:
                found[name] = found[name] + parameter.grad if name in found else parameter.grad
                parameter.grad = None
    return logits, found
