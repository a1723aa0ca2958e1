"""Tests that need a GPU: left out in one line where torch sees none, and never unnoticed.

With FLEETUNE_CUDA_TESTS=required it is an error to leave them out.
"""

import os
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
LEFT_OUT = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of this folder where there is no GPU."""
    ours = [item for item in items if HERE in item.path.parents]
    if not ours or torch.cuda.is_available():
        return
    sentence = f"{len(ours)} tests of GPUs are left out (torch {torch.__version__} sees no GPU here)"
    if os.environ.get("FLEETUNE_CUDA_TESTS") == "required":
        raise pytest.UsageError(f"FLEETUNE_CUDA_TESTS=required, but {sentence}")
    config.hook.pytest_deselected(items=ours)
    items[:] = [item for item in items if item not in ours]
    config.stash[LEFT_OUT] = sentence


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """To have left everything out is no failure where it is allowed."""
    if LEFT_OUT in session.config.stash and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if LEFT_OUT in config.stash and reporter is not None:
        reporter.write_line(config.stash[LEFT_OUT])
