"""Which row goes where: held-out rows and the seeded shuffle."""

from typing import Any

import numpy as np

from fleetune.contracts.config.data import DataRequest
from fleetune.errors import Refused

Numbers = np.ndarray[Any, np.dtype[np.int64]]
TRAIN, TEST = "train", "test"


def hold_out(request: DataRequest, keys: np.ndarray[Any, np.dtype[np.uint64]], seed: int) -> tuple[Numbers, Numbers]:
    """(train, test): the numbers of the rows that go to each split by test_fraction, each shuffled.

    `keys` says which rows are the same sample: equal keys never part, so nothing that is tested on was trained on.
    """
    _, groups = np.unique(keys, return_inverse=True)
    distinct = int(groups.max(initial=-1)) + 1
    order = np.argsort(_generator(seed, "hold out").permutation(distinct)[groups], kind="stable")
    border = min(max(1, round(len(keys) * request.test_fraction)), len(keys) - 1)
    while 0 < border < len(order) and groups[order[border]] == groups[order[border - 1]]:
        border += 1
    if not 0 < border < len(order):
        raise Refused(
            f"data: {request.source} has {distinct} distinct sample(s), too few to hold some out for testing; "
            "give more, or a test split"
        )
    return shuffled(order[border:], seed, TRAIN), shuffled(order[:border], seed, TEST)


def shuffled(numbers: Numbers, seed: int, split: str) -> Numbers:
    """The seeded shuffle of one split; the two splits shuffle independently."""
    return _generator(seed, split).permutation(np.sort(numbers)).astype(np.int64)


def _generator(seed: int, use: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, *use.encode()]))
