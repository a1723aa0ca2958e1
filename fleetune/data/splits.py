"""Which row goes where: held-out rows and the seeded shuffle."""

from typing import Any

import numpy as np

from fleetune.contracts.run_config import DataRequest
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
    border = held_out(len(keys), request.test_fraction)
    while 0 < border < len(order) and groups[order[border]] == groups[order[border - 1]]:
        border += 1
    if not 0 < border < len(order):
        raise Refused(
            f"data: {request.source} has {distinct} distinct sample(s), too few to hold some out for testing; "
            "give more, or a test split"
        )
    return shuffled(order[border:], seed, TRAIN), shuffled(order[:border], seed, TEST)


def held_out(rows: int, fraction: float) -> int:
    """How many of so many rows are held out, at least; equal rows may add some."""
    return min(max(1, round(rows * fraction)), rows - 1)


def prove_test_rows(request: DataRequest, found: int) -> None:
    """Refuse a test split with fewer rows than were asked for: scores of fewer say less than was wished."""
    if request.test_samples is not None and found < request.test_samples:
        raise Refused(
            f"data: test_samples asks for {request.test_samples} rows, but {request.source} has {found} to test on; "
            f"ask for at most {found}, or give more"
        )


def shuffled(numbers: Numbers, seed: int, split: str) -> Numbers:
    """The seeded shuffle of one split; the two splits shuffle independently."""
    return _generator(seed, split).permutation(np.sort(numbers)).astype(np.int64)


def _generator(seed: int, use: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, *use.encode()]))
