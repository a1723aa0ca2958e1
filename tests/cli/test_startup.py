"""A command imports only the libraries that it needs; counted by name, since seconds depend on the machine's load."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli.runs import add_run

HEAVY = {
    *("torch", "transformers", "peft", "safetensors", "numpy", "scipy", "numba", "pandas", "pyarrow", "sklearn"),
    *("networkx", "ortools", "prefect", "docker", "zmq", "psutil", "zeroconf", "cryptography", "jinja2", "asyncio"),
    *("fsspec", "yaml", "pyroute2", "packaging", "requests", "httpx"),
}
PROGRAM = """
import atexit, sys
atexit.register(lambda: print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr))
from flows.cli import main
sys.argv[0] = "fleetune"
main()
"""


def imported(root: Path, *arguments: str, **environment: str) -> tuple[str, set[str]]:
    """stdout of a command in its own process, and the packages that it has imported."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**os.environ, "FLEETUNE_ROOT": str(root), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return ended.stdout, set(ended.stderr.split())


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["solve", "--help"]])
def test_help_comes_at_once(root: Path, arguments: list[str]) -> None:
    """Bug: every command imported the store and the doctor; help and version import neither."""
    out, found = imported(root, *arguments)
    assert out
    assert ("pydantic" in found) == (arguments[0] in ("run", "solve"))  # typer reads the options of a command with it
    assert sorted(found & HEAVY) == []


def test_completion_comes_at_once(root: Path) -> None:
    """Shell completion, which runs at every key press, imports no library of a run."""
    asked = {"_FLEETUNE_COMPLETE": "complete_bash", "COMP_WORDS": "fleetune re", "COMP_CWORD": "1"}
    out, found = imported(root, **asked)
    assert out.split() == ["rerun"]
    assert sorted(found & HEAVY) == []


@pytest.mark.parametrize("arguments", [["runs"], ["runs", "--json"], ["show", "small-1"], ["show", "small-1", "train"]])
def test_records_are_shown_without_libraries_of_runs(root: Path, arguments: list[str]) -> None:
    """Bug: showing a run of a local store imported clients of object stores, containers and processes."""
    add_run(root, 1)
    out, found = imported(root, *arguments)
    assert "small" in out or "checkpoint" in out
    assert "pydantic" in found  # the list of packages is what it seems
    assert sorted(found & HEAVY) == []


def test_the_service_starts_without_planners() -> None:
    """Each start of a service registers the flows in a process of its own: the planners and their compiler, which
    `compare` needs once it runs, were half of its processor time.
    """
    program = "import sys; import flows.service.registration; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    found = set(done.stdout.split())
    assert "prefect" in found and not found & {"fleetune.planning", "numba", "scipy", "torch"}
