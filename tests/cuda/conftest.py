"""Tests that need a GPU: left out in one line where torch sees none, and never unnoticed.

With FLEETUNE_CUDA_TESTS=required it is an error to leave them out.
"""

from pathlib import Path

import pytest
import torch

from tests.support.left_out import LeftOut

HERE = Path(__file__).parent
LEFT_OUT = LeftOut("FLEETUNE_CUDA_TESTS")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of this folder where there is no GPU."""
    ours = [item for item in items if HERE in item.path.parents]
    if ours and not torch.cuda.is_available():
        why = f"{len(ours)} tests of GPUs are left out (torch {torch.__version__} sees no GPU here)"
        LEFT_OUT.leave_out(config, items, ours, why)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Leaving everything out is no failure."""
    LEFT_OUT.sessionfinish(session, exitstatus)


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line."""
    LEFT_OUT.unconfigure(config)
