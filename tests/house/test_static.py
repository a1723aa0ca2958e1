"""Static checks: format and mistakes by ruff, types by mypy, and the rules of imports by import-linter."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(sys.executable).parent
CHECKS = ("ruff format --check -q .", "ruff check -q .", "mypy", "lint-imports --no-logo")


@pytest.mark.parametrize("command", CHECKS)
def test_static_checks(command: str) -> None:
    """The whole project passes."""
    program, *arguments = command.split()
    done = subprocess.run([PROGRAMS / program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
