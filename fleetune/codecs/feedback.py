"""Error feedback: what a lossy message left out is added to the next message of the same kind."""

from collections import OrderedDict
from collections.abc import Hashable

import torch


class ErrorFeedback:
    """Residuals by key, at most `limit_bytes` of them; the one not used for longest goes first.

    A key is the caller's: an edge and a value of a gradient, or an edge, a value and a sample of an activation, since
    the error of one sample's activation means nothing for another sample.

    Residuals are no part of a model. Without them, after a resume, a new plan or when memory is short, training goes on
    as in its first round: each key loses at most what its last message left out, once.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._residuals: OrderedDict[Hashable, torch.Tensor] = OrderedDict()
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all residuals."""
        return self._size_bytes

    def __len__(self) -> int:
        return len(self._residuals)

    def add(self, key: Hashable, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor plus the key's residual: what to encode. Without a residual of its shape, the tensor."""
        residual = self._residuals.get(key)
        if residual is None or residual.shape != tensor.shape:
            return tensor
        self._residuals.move_to_end(key)
        return tensor + residual.to(tensor)

    def keep(self, key: Hashable, sent_minus_decoded: torch.Tensor) -> None:
        """Keep the error of the key's message instead of its old residual; errors that are not finite are dropped."""
        self.drop(key)
        residual = sent_minus_decoded.detach().clone()
        size = residual.numel() * residual.element_size()
        if size > self._limit_bytes or not residual.isfinite().all():
            return
        while self._size_bytes + size > self._limit_bytes:
            self.drop(next(iter(self._residuals)))
        self._residuals[key] = residual
        self._size_bytes += size

    def drop(self, key: Hashable) -> None:
        """Forget a key's residual, if there is one."""
        residual = self._residuals.pop(key, None)
        if residual is not None:
            self._size_bytes -= residual.numel() * residual.element_size()
