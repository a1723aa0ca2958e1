"""The collector: each round it hands parameters to every seat, collects gradients and sums them; its commit steps.

A parameter that several lanes train gets the mean of their gradients, weighted by their samples. Running statistics of
batch norms stay each seat's own; checkpoints hold the first lane's. `averaging` is for lanes with optimizers of their
own.
"""

from collections.abc import Collection, Mapping

import torch
from torch import nn

from fleetune.contracts.plan import Plan
from fleetune.contracts.training_request import TrainingRequest
from fleetune.training.checkpoints import MODEL
from fleetune.training.exchange import Tensors, check_alike
from fleetune.training.optimizer import NamedOptimizer
from fleetune.training.seat import TrainingSeat

NamesByUnit = Mapping[str, Collection[str]]
"""Unit -> canonical names of its trainable parameters and of its buffers."""


class LaneShares:
    """Which lanes train a tensor, and their weights in its mean."""

    def __init__(self, plan: Plan, weights: Mapping[str, float], names: NamesByUnit) -> None:
        """weights: lane -> share of all samples."""
        self._names = {
            (lane.name, index): {name for unit in segment.units for name in names[unit]}
            for lane in plan.lanes
            for index, segment in enumerate(lane.segments)
        }
        self._factors: dict[tuple[str, str], float] = {}
        totals: dict[str, float] = {}
        for lane in plan.lanes:
            trained = {name for segment in lane.segments for unit in segment.trained for name in names[unit]}
            for name in sorted(trained):
                self._factors[lane.name, name] = weights[lane.name]
                totals[name] = totals.get(name, 0.0) + weights[lane.name]
        self._factors = {(lane, name): weight / totals[name] for (lane, name), weight in self._factors.items()}

    def factor(self, lane: str, name: str) -> float:
        """Return the weight of a lane in a tensor's mean."""
        return self._factors[lane, name]

    def names_of(self, lane: str, segment: int) -> set[str]:
        """Return the names of the tensors that a segment holds."""
        return self._names[lane, segment]


class Collector:
    """Holds the trained parameters and their optimizer."""

    def __init__(
        self,
        plan: Plan,
        weights: Mapping[str, float],
        names: NamesByUnit,
        parameters: Mapping[str, nn.Parameter],
        training: TrainingRequest,
        undecayed: Collection[str] = (),
    ) -> None:
        """parameters: every parameter that some lane trains, by name. undecayed: as of NamedOptimizer."""
        self.parameters = dict(parameters)
        self.buffers: dict[str, torch.Tensor] = {}
        self.optimizer = NamedOptimizer(self.parameters, training, undecayed=undecayed)
        self._weights, self._names = weights, names
        self.deal(plan)

    def deal(self, plan: Plan) -> None:
        """Take over another plan's lanes of each tensor; parameters and optimizer state stay."""
        self._shares = LaneShares(plan, self._weights, self._names)

    def start_round(self) -> None:
        """Drop the gradients of a round that was not committed."""
        self.optimizer.clear_gradients()

    def state_of(self, lane: str, segment: int) -> Tensors:
        """Return the parameters of a segment, in their own memory: they change at the commit of the round, by when all
        seats have taken them in."""
        wanted = self._shares.names_of(lane, segment)
        return {MODEL + name: p.detach() for name, p in self.parameters.items() if name in wanted}

    def collect(self, lane: str, tensors: Tensors, sender: str) -> None:
        """Add a seat's gradients, weighted, to the sum. Refused: they are none of these parameters'."""
        named = _named(tensors, MODEL)
        check_alike(sender, "a gradient of", named, self.parameters)
        for name, gradient in named.items():
            factor, parameter = self._shares.factor(lane, name), self.parameters[name]
            term = gradient if factor == 1.0 else gradient * factor
            parameter.grad = term.clone() if parameter.grad is None else parameter.grad.add_(term)

    def commit(self, round: int, scale: float | None) -> None:
        """Take the optimizer's step with gradients times `scale`; None: take none."""
        if scale is not None:
            self.optimizer.step(round, scale)


def push_state(seat: TrainingSeat) -> Tensors:
    """Return the gradients of a seat's trained parameters, for the collector."""
    return {MODEL + name: gradient for name, gradient in seat.optimizer.gradients().items()}


def pull_state(seat: TrainingSeat, tensors: Tensors, collector: str) -> None:
    """Put a collector's parameters into a seat. Refused: they are none of the seat's."""
    named = _named(tensors, MODEL)
    check_alike(collector, "the parameter", named, seat.runner.parameters)
    seat.runner.put(named)


def _named(tensors: Tensors, prefix: str) -> dict[str, torch.Tensor]:
    return {str(key).removeprefix(prefix): t for key, t in tensors.items() if str(key).startswith(prefix)}
