"""Tests that were collected and are not run: with the reason and the command that runs them, never unnoticed."""

import os
from dataclasses import asdict, dataclass, replace

import pytest

REQUIRED = "required"


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Tests that are not run."""

    tests: int
    what: str
    why: str
    how: str
    """The command that runs them."""
    required: bool = False
    """True if leaving them out is an error here."""

    def __str__(self) -> str:
        return f"{self.tests} tests of {self.what} are left out ({self.why}): {self.how}"


_LISTED = pytest.StashKey[list[LeftOut]]()
_SAID = pytest.StashKey[list[str]]()


def leave_out(
    config: pytest.Config, items: list[pytest.Item], ours: list[pytest.Item], said: LeftOut, variable: str = ""
) -> None:
    """Take tests off the collected ones, and keep what is said of them for the end.

    variable: of the environment; where it says `required`, the run ends with an error: at once, or at its end where
    several processes collect.
    """
    required = os.environ.get(variable) == REQUIRED
    if required and not hasattr(config, "workeroutput"):
        raise pytest.UsageError(f"{variable}=required, but {said}")
    taken = set(ours)
    config.hook.pytest_deselected(items=ours)
    items[:] = [item for item in items if item not in taken]
    config.stash.setdefault(_LISTED, []).append(replace(said, required=required))


def listed(config: pytest.Config) -> list[LeftOut]:
    """Return what is left out, in the order in which it was found."""
    return list(config.stash.get(_LISTED, []))


def say(config: pytest.Config, line: str) -> None:
    """Keep a line for the end."""
    config.stash.setdefault(_SAID, []).append(line)


def said(config: pytest.Config) -> list[str]:
    """Return the lines for the end."""
    return list(config.stash.get(_SAID, []))


def hand_over(config: pytest.Config) -> None:
    """Give what this process leaves out to the one that started it, if it is one of several."""
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output["left_out"] = [asdict(each) for each in listed(config)]
        output["said"] = said(config)


def take_over(config: pytest.Config, output: dict[str, object]) -> None:
    """Take what one of several processes leaves out; all of them collect the same."""
    given, lines = output.get("left_out"), output.get("said")
    if isinstance(given, list) and isinstance(lines, list):
        config.stash[_LISTED], config.stash[_SAID] = [LeftOut(**each) for each in given], lines
