"""Fine-tune a foundation model across uneven machines.

Layers, each of which may import those before it: errors, formatting, arrays, wall_clock, library_sources and
exposed_folders; contracts, filesystem, jit and linux; program; clock; checks, models, codecs, data, launching, drawing,
store, links, monitoring and recovery; preparation and solving; one package for each other stage. The import-linter
contracts in pyproject.toml enforce this order.

In notebooks and scripts, `fleetune.plan` and `fleetune.train` run the pipeline; they are those of `flows/notebook.py`.
"""

from importlib import import_module
from typing import Any

from fleetune import library_sources

library_sources.close()

_PIPELINE = ("plan", "train")


def __getattr__(name: str) -> Any:
    """Find `plan` and `train` when they are first asked for: no package here imports the pipeline above it."""
    if name in _PIPELINE:
        return getattr(import_module("flows.notebook"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
