"""The control runs on one thread, as the workers of these tests do: more threads add in another order."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Whatever OMP_NUM_THREADS says."""
    torch.set_num_threads(1)
