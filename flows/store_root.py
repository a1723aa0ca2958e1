"""The folder or fsspec URL that keeps runs and artifacts, where a command or flow is given none."""

import os

ROOT_VARIABLE = "FLEETUNE_ROOT"
"""Environment variable that names it."""
DEFAULT_ROOT = "runs"


def store_root() -> str:
    """Return the root that the environment names, else `runs` in the working directory."""
    return os.environ.get(ROOT_VARIABLE, DEFAULT_ROOT)
