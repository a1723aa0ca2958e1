"""Every command in the README and in docs/ works as written."""

import shlex
from pathlib import Path

import pytest

from tests.support.cli.calls import Call
from tests.support.cli.documentation import COMMANDS, README, REPOSITORY
from tests.support.cli.runs import add_run
from tests.support.cli.stand_in import Pipeline

TRAINS_NOTHING = [
    command
    for command in COMMANDS
    if not command.startswith(("solve configs", "doctor", "compare", "evaluate", "chaos"))
]


def test_readme_has_commands() -> None:
    """The README shows the commands of a newcomer's first hour."""
    first = {command.split()[0] for command in README}
    assert first == {"run", "runs", "show", "rerun", "diff", "verify", "doctor", "solve", "cite"}


@pytest.mark.parametrize("command", TRAINS_NOTHING)
def test_a_command_of_readme(
    call: Call, pipeline: Pipeline, root: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Bug: `fleetune diff latest demo` in the README was refused; each command succeeds in a store with runs, with a
    pipeline that trains nothing."""
    monkeypatch.chdir(REPOSITORY)
    for number in (-2, -1):
        add_run(root, number)
    result = call(*shlex.split(command))
    assert result.exit_code == 0, result.stderr
    assert result.stdout


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("solve configs")])
def test_a_problem_of_readme_is_there(command: str) -> None:
    """The problem that the README solves is a file of the repository."""
    assert (REPOSITORY / shlex.split(command)[1]).is_file()
