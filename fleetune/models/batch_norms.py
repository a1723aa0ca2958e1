"""Norms whose statistics are those of a whole micro-batch: no group of devices can share its samples."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase


def sees_whole_batch(module: nn.Module) -> bool:
    """Return whether a norm in this module normalises over the samples of a batch, or keeps their mean.

    Frozen ones do, as in plain torch: all modules of a training are in training mode.
    """
    return any(_has_statistics(each) for each in module.modules())


def with_kept_statistics(model: nn.Module) -> nn.Module:
    """The model, whose norms take the statistics that they have kept for those of a batch."""
    for each in model.modules():
        if _has_statistics(each):
            each.eval()
    return model


def keeps_statistics(norm: nn.Module) -> bool:
    """Return whether a module is a norm that changes its running statistics in training."""
    return isinstance(norm, _NormBase) and norm.track_running_stats


def _has_statistics(norm: nn.Module) -> bool:
    return isinstance(norm, _BatchNorm) or keeps_statistics(norm)
