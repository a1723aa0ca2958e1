"""What processes on devices import takes memory there."""

import functools
import json
import subprocess
import sys

import pytest

from fleetune.training.worker_command import WORKER

MODULES = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted(sys.modules)))
"""
AGENT = "fleetune.discovery.agent"
TRANSFORMERS = ("torch", "transformers", "transformers.modeling_utils")
"""What the worker needs of transformers; that imports SciPy by itself where it is installed."""
NOT_NEEDED = {
    *("numba", "llvmlite", "scipy", "pandas", "pyarrow", "sklearn", "networkx", "ortools", "tokenizers"),
    *("prefect", "docker", "zeroconf", "cryptography", "sqlalchemy", "fastapi", "typer"),
}


@functools.cache
def imported(*modules: str) -> set[str]:
    """All modules of a fresh process that imports these."""
    ended = subprocess.run(
        [sys.executable, "-c", MODULES, *modules], capture_output=True, text=True, timeout=300, check=True
    )
    return set(json.loads(ended.stdout))


@pytest.mark.parametrize("process", [WORKER, "fleetune.profiling.measuring_process", AGENT])
def test_processes_on_devices_import_no_library_of_the_coordinator(process: str) -> None:
    """Processes on devices import no library for planning, preparing or orchestrating.

    Bug: the worker imported its package, which imported the coordinator, and with it the compiler of the simulation
    and the readers of data sources: 462 MB in each worker before its first unit instead of 376, and in the same way 89
    MB instead of 47 in each discovery agent.
    """
    found = imported(process)
    assert process in found
    computes = "torch" in found
    assert computes == (process != AGENT)
    own = found - imported(*TRANSFORMERS) if computes else found
    assert not NOT_NEEDED & {name.partition(".")[0] for name in own}
