"""Error feedback: what a lossy message left out is added to the next message of the same key.

After Seide et al., 1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of
Speech DNNs, Interspeech 2014.
"""

from collections.abc import Mapping

import torch


class ErrorFeedback:
    """Residuals by key, which belong to the state of committed rounds.

    Within a round each key sends one message. What messages leave out counts from `commit` on; a round that is thrown
    away changes no residual. A key without a residual of its message's shape, as after a change of plan, starts anew:
    it has lost at most what its last message left out, once.
    """

    def __init__(self) -> None:
        self._residuals: dict[str, torch.Tensor] = {}
        self._next: dict[str, torch.Tensor | None] = {}

    def start_round(self) -> None:
        """Drop what an uncommitted round left."""
        self._next.clear()

    def add(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor plus the key's residual: what to encode. Without a residual of its shape, the tensor."""
        residual = self._residuals.get(key)
        if residual is None or residual.shape != tensor.shape:
            return tensor
        return tensor + residual.to(tensor)

    def keep(self, key: str, sent_minus_decoded: torch.Tensor) -> None:
        """Keep the error of the key's message for the time after the commit; one that is not finite counts as none."""
        error = sent_minus_decoded.detach()
        self._next[key] = error.clone() if error.isfinite().all() else None

    def commit(self) -> None:
        """Replace the residuals of all keys that have sent a message in this round."""
        for key, error in self._next.items():
            if error is None:
                self._residuals.pop(key, None)
            else:
                self._residuals[key] = error
        self._next.clear()

    def state(self) -> dict[str, torch.Tensor]:
        """Return the committed residuals by key."""
        return dict(self._residuals)

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over the residuals of a checkpoint."""
        self._residuals = dict(state)
        self._next.clear()
