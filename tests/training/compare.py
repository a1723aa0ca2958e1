"""Compares a partitioned run with its control, tensor by tensor."""

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fleetune.contracts.metrics import TrainingMetrics
from fleetune.data import PreparedData
from fleetune.models.skeleton import saved_configuration
from fleetune.models.start import START, initial_model
from tests.training.reference import Control
from tests.training.runs import Prepared

# Tensors whose true gradient (or value) is zero, so that what is there is rounding noise: a key's bias shifts all
# scores of a query alike; a bias before another batch norm is centred away again; a
# statistic of what has just been centred is zero. They are checked through the logits.
TRUE_ZERO = re.compile(
    r"\.key\.bias$|project_bn\.bias$|reduce_1x1\.normalization\.bias$|k_proj\.bias$|c_attn\.bias$|expand_1x1\.normalization\.running_mean$"
    r"|conv_1x1\.normalization\.running_mean$|expand_bn\.running_mean$|top_bn\.running_mean$"
)


@dataclass(frozen=True)
class Difference:
    """How far two runs are apart: relative, worst over all."""

    loss: float
    logits: float
    tensor: float
    worst: str
    bitwise: bool


def whole_model(ready: Prepared) -> nn.Module:
    """The unsplit model with the weights that training starts from."""
    config = saved_configuration(ready.folders.profile / "model")
    return initial_model(config, ready.model, ready.folders.profile / START)


def difference(
    ready: Prepared, metrics: TrainingMetrics, state: dict[str, torch.Tensor], control: Control
) -> Difference:
    """Losses, logits on the test split, and every tensor by relative L2 distance."""
    pairs = [(k, state[k], control.state[k]) for k in control.state if k in state]
    missing = [k for k in trained_names(ready) if k not in state]
    assert not missing, f"training left nothing of {missing[:3]}"
    distances = {k: _relative(a, b) for k, a, b in pairs if not TRUE_ZERO.search(k)}
    worst = max(distances, key=lambda k: distances[k])
    losses = [abs(m.loss - c) / abs(c) for m, c in zip(metrics.rounds, control.losses, strict=True)]
    ours, theirs = _logits(ready, state), _logits(ready, control.state)
    return Difference(
        loss=max(losses),
        logits=_relative(ours, theirs),
        tensor=distances[worst],
        worst=worst,
        bitwise=max(losses) == 0.0 and all(torch.equal(a, b) for _, a, b in pairs),
    )


def trained_names(ready: Prepared) -> list[str]:
    """Names of what training moves."""
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
