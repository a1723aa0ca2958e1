"""The scale of the loss in fp16, whose smallest numbers would otherwise be too large for many gradients.

The loss is multiplied by it before the backward, and gradients are divided by it before the step. It is a power of two,
so that neither rounds. A lane whose gradients overflow takes no step, and the next round's scale is half of it; after
GROWS_AFTER_ROUNDS rounds without that it is doubled, as torch's GradScaler does. What it is follows from the commit log
alone: a training that goes on from a checkpoint, or after a loss, has the scale of one that nothing befell.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile

import torch

from fleetune.contracts.metrics import RoundMetrics
from fleetune.contracts.mixed_precision import FIRST_LOSS_SCALE, FP16
from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.training_request import TrainingRequest
from fleetune.training.gradients import clip_scale

UNSCALED = 1.0
FIRST, MOST = FIRST_LOSS_SCALE, 2.0**24
GROWS_AFTER_ROUNDS = 2000


def next_scale(model: ModelRequest, rounds: Sequence[RoundMetrics]) -> float:
    """Return the scale of the round that follows the committed ones; UNSCALED for all but fp16."""
    if model.mixed_precision != FP16:
        return UNSCALED
    if not rounds:
        return FIRST
    last = rounds[-1]
    scale = last.loss_scale or FIRST
    if last.overflowed:
        return max(UNSCALED, scale / 2)
    newest = reversed(rounds[-GROWS_AFTER_ROUNDS:])
    calm = sum(1 for _ in takewhile(lambda each: each.loss_scale == last.loss_scale and not each.overflowed, newest))
    return min(MOST, scale * 2) if calm >= GROWS_AFTER_ROUNDS else scale


def step_scales(
    training: TrainingRequest, metrics: RoundMetrics, norms: Mapping[str, torch.Tensor]
) -> dict[str, float | None]:
    """Return lane -> what its gradients are multiplied by before the step; None for a lane that takes none.

    norms: of the lanes' gradients, without the scale.
    """
    scale = metrics.loss_scale or UNSCALED
    return {
        lane: None if lane in metrics.overflowed else clip_scale(training, norm) / scale for lane, norm in norms.items()
    }
