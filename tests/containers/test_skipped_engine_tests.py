"""Tests of containers are deselected on a machine where no engine answers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASKED = "tests/engine/test_images.py"


def _tests(engine_tests: str | None, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a process of its own, with DOCKER_HOST set to a socket that does not exist."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "FLEETUNE_ENGINE"))}
    chosen = {} if engine_tests is None else {"FLEETUNE_ENGINE_TESTS": engine_tests}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, ASKED],
        cwd=ROOT,
        env={**kept, "DOCKER_HOST": f"unix://{folder}/nothing", **chosen},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_left_out_in_one_line(tmp_path: Path) -> None:
    """The run passes, and a line says why tests are left out and which command includes them."""
    ended = _tests(None, tmp_path)
    assert ended.returncode == pytest.ExitCode.OK, ended.stdout + ended.stderr
    (told,) = (line for line in ended.stdout.splitlines() if "left out" in line)
    assert "tests of containers are left out (no engine answers" in told
    assert told.endswith("make engine images ONLY='mounted plan train', then make test")


def test_required(tmp_path: Path) -> None:
    """FLEETUNE_ENGINE_TESTS=required makes leaving tests out an error."""
    ended = _tests("required", tmp_path)
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "tests of containers are left out (no engine answers" in ended.stderr


def test_required_of_several_processes(tmp_path: Path) -> None:
    """With several processes the run fails at its end, and says the same."""
    ended = _tests("required", tmp_path, "-n", "1", "--whole-run")
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ERROR, required but left out" in ended.stdout and "no engine answers" in ended.stdout
