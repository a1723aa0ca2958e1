"""The control runs on one thread, like the workers of these tests: more threads change the order of additions."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Use one thread, whatever OMP_NUM_THREADS says."""
    torch.set_num_threads(1)
