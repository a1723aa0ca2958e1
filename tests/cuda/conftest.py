"""Tests that need a GPU: left out where torch sees none, and never unnoticed.

With FLEETUNE_CUDA_TESTS=required it is an error to leave them out.
"""

from pathlib import Path

import pytest

from tests.support.left_out import LeftOut, leave_out

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of this folder where there is no GPU."""
    ours = [item for item in items if HERE in item.path.parents]
    if not ours:
        return
    import torch

    if not torch.cuda.is_available():
        why = f"torch {torch.__version__} sees no GPU here"
        said = LeftOut(tests=len(ours), what="GPUs", why=why, how="make test, on a machine with a GPU and its torch")
        leave_out(config, items, ours, said, "FLEETUNE_CUDA_TESTS")
