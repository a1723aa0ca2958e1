"""Running statistics of batch norms, as a transaction: a forward moves copies, and only a commit moves what is kept.

Until then the segment's own buffers - what checkpoints hold - stay as the last committed round left them, and a round
that is started anew starts from them. This holds for running means and variances and for the number of batches, of
every torch batch or instance norm; other modules must not change their buffers in a forward.
"""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fleetune.models.segment import Segment

MEANS, COUNT = ("running_mean", "running_var"), "num_batches_tracked"


class BatchStatistics:
    """The statistics of one segment; its modules work on copies from now on."""

    def __init__(self, segment: Segment) -> None:
        self._kept: list[tuple[nn.Module, str, torch.Tensor]] = []
        norms = {id(m): m for leaf in segment.modules.values() for m in leaf.modules() if isinstance(m, _NormBase)}
        for norm in norms.values():
            for name in (*MEANS, COUNT):
                kept = norm._buffers.get(name)
                if kept is not None:
                    self._kept.append((norm, name, kept))
                    norm._buffers[name] = kept.clone()

    @property
    def means(self) -> list[torch.Tensor]:
        """The copies of which a group's members keep the sample-weighted mean."""
        return [self._copy(norm, name) for norm, name, _ in self._kept if name in MEANS]

    def start(self) -> None:
        """Begin a round with what is kept."""
        for norm, name, kept in self._kept:
            self._copy(norm, name).copy_(kept)

    def commit(self) -> None:
        """Keep what the round has made."""
        for norm, name, kept in self._kept:
            kept.copy_(self._copy(norm, name))

    @staticmethod
    def _copy(norm: nn.Module, name: str) -> torch.Tensor:
        found = norm._buffers[name]
        assert found is not None, "it was there when the segment was loaded"
        return found
