"""Ctrl-C in the first second, while the command still imports what it needs."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys

class Gone:
    def __del__(self):
        raise KeyboardInterrupt

def as_an_error():
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        raise ImportError("a library that could not be loaded")

def where_nothing_can_be_raised():
    Gone()

def at_once():
    raise KeyboardInterrupt

class Finder:
    def find_spec(self, name, *_):
        if name == "{module}":
            {how}()

sys.meta_path.insert(0, Finder())
sys.argv[:] = ["fleetune", "runs"]
from flows.cli import main
main()
"""


@pytest.mark.parametrize(
    ("module", "how"),
    [
        ("typer", "at_once"),
        ("typer", "where_nothing_can_be_raised"),
        ("fleetune.store", "at_once"),
        ("fleetune.store", "as_an_error"),
        ("fleetune.store", "where_nothing_can_be_raised"),
    ],
)
def test_while_it_imports(tmp_path: Path, module: str, how: str) -> None:
    """Bug: Ctrl-C during imports printed a traceback or was lost; it must print one word and exit with 130."""
    program = PROGRAM.replace("{module}", module).replace("{how}", how)
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "stopped\n")
