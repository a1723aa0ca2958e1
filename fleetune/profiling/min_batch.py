"""The smallest batch on which a model can be timed in training mode."""

import math
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fleetune.models.graph import Graph
from fleetune.models.segment import run_on_meta


def min_samples(recorded: Graph, skeleton: nn.Module) -> int:
    """2 if a batch norm sees one value per channel and sample, which has no variance in a batch of one; else 1.

    `skeleton` is the whole model on the meta device and runs there without data.
    """
    if not any(isinstance(module, _BatchNorm) for module in skeleton.modules()):
        return 1
    found = [1]

    def seen(module: nn.Module, inputs: Any) -> None:
        if isinstance(module, _BatchNorm) and math.prod(inputs[0].shape[2:]) == 1:
            found.append(2)

    run_on_meta(recorded, skeleton, seen)
    return max(found)
