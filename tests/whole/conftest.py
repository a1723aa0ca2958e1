"""A Prefect server that commands share: else each starts one of its own, which takes as long as the rest of a short
run. Servers of commands' own are met by tests that kill a command or give it a strange working directory."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

SERVER = """
import json, os, sys
from pathlib import Path
from flows import prefect_server
prefect_server.ensure(Path("home"))
print(json.dumps({name: value for name, value in os.environ.items() if name.startswith("PREFECT_")}), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables that lead a command to the server, which ends with the module."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        cwd=tmp_path_factory.mktemp("prefect"),
        env=kept,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.stdin.close()
