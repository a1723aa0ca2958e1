"""Tests of containers are deselected on a machine where no engine answers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASKED = "tests/engine/test_images.py"


def _tests(engine_tests: str | None, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run pytest in a process of its own, with DOCKER_HOST set to a socket that does not exist."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "FLEETUNE_ENGINE"))}
    chosen = {} if engine_tests is None else {"FLEETUNE_ENGINE_TESTS": engine_tests}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ASKED],
        cwd=ROOT,
        env={**kept, "DOCKER_HOST": f"unix://{folder}/nothing", **chosen},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_left_out_in_one_line(tmp_path: Path) -> None:
    """The run passes, and its last line says why tests are left out and which command includes them."""
    ended = _tests(None, tmp_path)
    assert ended.returncode == pytest.ExitCode.OK, ended.stdout + ended.stderr
    *_, last = ended.stdout.splitlines()
    assert "container tests are left out (no engine answers" in last
    assert "make engine images ONLY='mounted plan train', then make test, includes them" in last


def test_required(tmp_path: Path) -> None:
    """FLEETUNE_ENGINE_TESTS=required makes leaving tests out an error."""
    ended = _tests("required", tmp_path)
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "container tests are left out (no engine answers" in ended.stderr
