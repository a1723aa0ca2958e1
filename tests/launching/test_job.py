"""The end of commands, as their output tells of it."""

from typing import cast

import pytest

from fleetune.errors import TryAgain
from fleetune.launching import Job
from fleetune.launching.job import AFTER_OUTPUT_S, exit_code_after_output


class Silent:
    """A job that ends, or whose engine cannot be asked whether it has."""

    def __init__(self, code: int | None) -> None:
        self.code = code
        self.waited_s: list[float | None] = []

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Its exit code, if that can be had."""
        self.waited_s.append(timeout_s)
        return self.code


def test_a_command_whose_engine_is_gone_is_not_waited_for_for_ever() -> None:
    """Bug: a machine that was switched off while it was profiled kept the run at work for ever, and every later one
    of its schedule was skipped."""
    gone, ended = Silent(None), Silent(3)
    assert exit_code_after_output(cast(Job, ended), "device a: profiling") == 3
    with pytest.raises(TryAgain, match="device a: profiling: its output has ended, and for 60 s nothing tells"):
        exit_code_after_output(cast(Job, gone), "device a: profiling")
    assert gone.waited_s == [AFTER_OUTPUT_S]
