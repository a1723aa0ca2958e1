"""Tests that nothing here can serve: left out in one line, and never unnoticed."""

import os

import pytest

REQUIRED = "required"


class LeftOut:
    """What a folder's conftest leaves out; its hooks of the same names call these."""

    def __init__(self, variable: str) -> None:
        """variable: of the environment; set to `required`, it makes leaving out an error."""
        self._variable, self._said = variable, pytest.StashKey[str]()

    def leave_out(self, config: pytest.Config, items: list[pytest.Item], ours: list[pytest.Item], why: str) -> None:
        """Take tests off the collected ones, and keep the sentence for the last line."""
        if os.environ.get(self._variable) == REQUIRED:
            raise pytest.UsageError(f"{self._variable}=required, but {why}")
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]
        config.stash[self._said] = why

    def sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """To have left everything out is no failure where it is allowed."""
        if self._said in session.config.stash and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK

    def unconfigure(self, config: pytest.Config) -> None:
        """Write the last line."""
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if self._said in config.stash and reporter is not None:
            reporter.write_line(config.stash[self._said])
