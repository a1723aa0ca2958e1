"""The order of samples in training rounds."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetune.data.prepared_data import batch_indices
from fleetune.errors import Refused


@given(samples=st.integers(1, 40), batch=st.integers(1, 100), seed=st.integers(0, 2**40))
def test_every_epoch_holds_every_sample_once(samples: int, batch: int, seed: int) -> None:
    """For any batch size, every epoch is a permutation of the samples."""
    rounds = -(-3 * samples // batch)
    line = np.concatenate([batch_indices(samples, batch, seed, number) for number in range(rounds)])
    for first in range(0, 3 * samples, samples):
        assert sorted(line[first : first + samples]) == list(range(samples))


def test_batch_crosses_the_border_of_an_epoch() -> None:
    """5 samples in batches of 3: the second batch ends one epoch and opens the next."""
    batches = [batch_indices(5, 3, 7, number) for number in range(4)]
    assert Counter([*batches[0], *batches[1][:2]]) == Counter(range(5))
    assert len(batches[1]) == 3
    assert Counter([*batches[1][2:], *batches[2], *batches[3][:1]]) == Counter(range(5))


def test_order_depends_on_seed_and_epoch_only() -> None:
    """Equal arguments give the same batch; another seed or epoch gives another order."""
    first = batch_indices(50, 50, 1, 0)
    assert np.array_equal(first, batch_indices(50, 50, 1, 0))
    assert not np.array_equal(first, batch_indices(50, 50, 2, 0))
    assert not np.array_equal(first, batch_indices(50, 50, 1, 1))
    assert np.array_equal(np.concatenate([batch_indices(50, 10, 1, n) for n in range(5)]), first)


def test_late_rounds_cost_no_more_than_early_ones() -> None:
    """A late round computes only the permutation of its own epoch."""
    assert batch_indices(10, 4, 0, 10**15).shape == (4,)


def test_caller_may_change_what_it_gets() -> None:
    """Writing into a returned batch does not affect later calls."""
    batch = batch_indices(6, 6, 0, 0)
    kept = batch.copy()
    batch[:] = 0
    assert np.array_equal(batch_indices(6, 6, 0, 0), kept)


@pytest.mark.parametrize("wrong", [{"train_samples": 0}, {"batch_samples": 0}, {"round": -1}, {"seed": -1}])
def test_senseless_numbers_are_refused(wrong: dict[str, int]) -> None:
    """Zero samples, empty batches and negative rounds or seeds are refused by name."""
    with pytest.raises(Refused, match=next(iter(wrong))):
        batch_indices(**{"train_samples": 5, "batch_samples": 2, "seed": 0, "round": 0, **wrong})
