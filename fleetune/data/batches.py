"""Which samples a round trains on: a fresh permutation per epoch, and no sample is dropped at an epoch's end."""

from functools import lru_cache
from typing import Any

import numpy as np

from fleetune.contracts.record import not_negative, positive

Indices = np.ndarray[Any, np.dtype[np.int64]]


def batch_indices(train_samples: int, batch_samples: int, seed: int, round: int) -> Indices:
    """Rows of the train split that round `round` (from 0) uses, in order: int64 [batch_samples].

    The epochs' permutations stand one after the other and rounds cut that line into batches, so a batch may cross
    from one epoch into the next, or span several. Costs one permutation of an epoch, whatever the round.
    """
    positive("batch_indices", train_samples=train_samples, batch_samples=batch_samples)
    not_negative("batch_indices", seed=seed, round=round)
    pieces, first, left = [], round * batch_samples, batch_samples
    while left:
        epoch, offset = divmod(first, train_samples)
        piece = _epoch(train_samples, seed, epoch)[offset : offset + left]
        pieces.append(piece)
        first, left = first + len(piece), left - len(piece)
    return np.concatenate(pieces)


@lru_cache(maxsize=2)
def _epoch(samples: int, seed: int, epoch: int) -> Indices:
    order = np.random.Generator(np.random.PCG64([seed, epoch])).permutation(samples).astype(np.int64)
    order.flags.writeable = False
    return order
