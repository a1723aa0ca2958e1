"""Norms whose statistics are those of a whole micro-batch: no group of devices can share its samples."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase


def sees_whole_batch(module: nn.Module) -> bool:
    """Return whether a norm in this module normalises over the samples of a batch, or keeps their mean.

    Frozen ones do, as in plain torch: all modules of a training are in training mode.
    """
    return any(
        isinstance(each, _BatchNorm) or (isinstance(each, _NormBase) and each.track_running_stats)
        for each in module.modules()
    )
