"""The line that a failed run leaves in the store."""

import asyncio
import json
from pathlib import Path

import pytest
from prefect.settings import PREFECT_HOME, temporary_settings

from flows.service.automations import FILE, FailureLog


def test_a_failure_is_written_into_no_file_that_others_choose(tmp_path: Path) -> None:
    """Bug: in a store that a group may write, a link from failures.jsonl led the line, whose reason others can shape,
    into any file of the service's user."""
    log, other = tmp_path / FILE, tmp_path / "profile"
    other.write_text("mine\n")
    with temporary_settings({PREFECT_HOME: tmp_path / "prefect"}):
        asyncio.run(FailureLog().notify("no reason", "small-1"))
        assert json.loads(log.read_text())["reason"] == "no reason"
        log.unlink()
        log.symlink_to(other)
        with pytest.raises(OSError, match="symbolic link"):
            asyncio.run(FailureLog().notify("$(evil)", "small-1"))
    assert other.read_text() == "mine\n"
