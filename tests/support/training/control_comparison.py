"""Compares a partitioned run with its control, tensor by tensor."""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fleetune.contracts.training_request import TrainingRequest
from fleetune.data.prepared_data import PreparedData
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model
from fleetune.models.skeleton import saved_configuration
from tests.support.training.plain_half import compute_in_half
from tests.support.training.runs import Prepared
from tests.support.training.unsplit_training import Control, Order, train_unsplit

# Tensors whose true gradient (or value) is zero, so that what is there is rounding noise: a key's bias shifts all
# scores of a query alike; a bias before another batch norm is centred away again; a
# statistic of what has just been centred is zero. They are checked through the logits.
TRUE_ZERO = re.compile(
    r"\.key\.bias$|project_bn\.bias$|reduce_1x1\.normalization\.bias$|k_proj\.bias$|c_attn\.bias$|expand_1x1\.normalization\.running_mean$"
    r"|conv_1x1\.normalization\.running_mean$|expand_bn\.running_mean$|top_bn\.running_mean$"
)


@dataclass(frozen=True)
class Difference:
    """Relative differences of two runs, each the largest over all rounds or tensors."""

    loss: float
    logits: float
    tensor: float
    worst: str
    bitwise: bool


FP32, FP64 = 1e-5, 1e-10
"""Largest allowed difference between a run and its control, if rounding allows it."""
FACTOR = 20.0
"""Largest allowed difference in multiples of the machine's own rounding.

A run cut into shards and segments changes the order of more additions than the control that measures rounding does."""


@dataclass(frozen=True)
class Comparison:
    """A run compared with its control, and the control's own rounding on this machine."""

    found: Difference
    floor: Callable[[], Difference]
    """The control beside itself with its additions in another order."""

    @property
    def bitwise(self) -> bool:
        """True if all bits agree."""
        return self.found.bitwise

    def within(self, target: float) -> bool:
        """Return whether all differences are within `target`, or within FACTOR times the control's own rounding.

        The rounding is measured as the control's difference when its additions are in another order.
        """
        if max(self.found.loss, self.found.logits, self.found.tensor) < target:
            return True
        floor = self.floor()
        pairs = ((self.found.loss, floor.loss), (self.found.logits, floor.logits), (self.found.tensor, floor.tensor))
        return all(distance < max(target, FACTOR * rounding) for distance, rounding in pairs)


def beside_control(
    ready: Prepared, run: Control, training: TrainingRequest, shards: list[tuple[int, int]], device: str = "cpu"
) -> Comparison:
    """Compare a run with the control that sees these shards and computes on a device."""
    return Controls(ready, training, shards, device).beside(run)


class Controls:
    """The control of a training that sees these shards, and its own rounding; each is computed once."""

    def __init__(
        self, ready: Prepared, training: TrainingRequest, shards: list[tuple[int, int]], device: str = "cpu"
    ) -> None:
        self._ready, self._training, self._shards, self._device = ready, training, shards, device

    def beside(self, run: Control) -> Comparison:
        """Compare a run with the control."""
        return Comparison(difference(self._ready, run, self._usual), lambda: self._floor)

    @functools.cached_property
    def _usual(self) -> Control:
        return self._trained(Order(self._shards))

    @functools.cached_property
    def _floor(self) -> Difference:
        norms = has_batch_norm(self._ready)
        other = Order(self._shards, samples=1 if norms else None, micro_batches=not norms)
        return difference(self._ready, self._trained(other), self._usual)

    def _trained(self, order: Order) -> Control:
        ready = self._ready
        data = PreparedData(ready.folders.data)
        model = whole_model(ready).to(self._device)
        if ready.model.mixed_precision is not None:
            model = compute_in_half(model, ready.model.mixed_precision)
        return train_unsplit(model, data, self._training, ready.seed, ready.units, order)


def has_batch_norm(ready: Prepared) -> bool:
    """Return whether the model keeps running statistics."""
    return any("running_mean" in name for name, _ in whole_model(ready).named_buffers())


def whole_model(ready: Prepared) -> nn.Module:
    """Return the unsplit model with the weights that training starts from."""
    config = saved_configuration(ready.folders.model / "model")
    return initial_model(config, ready.model, ready.folders.model / INIT_WEIGHTS)


def difference(ready: Prepared, run: Control, control: Control) -> Difference:
    """Compare losses, logits on the test split, and every tensor by relative L2 distance."""
    state = run.state
    pairs = [(k, state[k], control.state[k]) for k in control.state if k in state]
    missing = [k for k in trained_names(ready) if k not in state]
    assert not missing, f"training left nothing of {missing[:3]}"
    distances = {k: _relative(a, b) for k, a, b in pairs if not TRUE_ZERO.search(k)}
    worst = max(distances, key=lambda k: distances[k])
    losses = [abs(ours - c) / abs(c) for ours, c in zip(run.losses, control.losses, strict=True)]
    logits, theirs = _logits(ready, state), _logits(ready, control.state)
    return Difference(
        loss=max(losses),
        logits=_relative(logits, theirs),
        tensor=distances[worst],
        worst=worst,
        bitwise=max(losses) == 0.0 and all(torch.equal(a, b) for _, a, b in pairs),
    )


def trained_names(ready: Prepared) -> list[str]:
    """Return the names of the trained parameters."""
    return [n for n, p in whole_model(ready).named_parameters() if p.requires_grad]


def _relative(a: torch.Tensor, b: torch.Tensor) -> float:
    distance = (a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)
    return float(distance)


def _logits(ready: Prepared, state: dict[str, torch.Tensor]) -> Any:
    model = whole_model(ready)
    model.load_state_dict(state, strict=False)
    data = PreparedData(ready.folders.data)
    rows = {k: torch.from_numpy(v) for k, v in data.rows("test", range(8)).items() if k != "labels"}
    with torch.no_grad():
        return model.eval()(**rows).logits
