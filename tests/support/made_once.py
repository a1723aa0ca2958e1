"""Folders that all processes of a run share: whoever first needs what has a key makes it, the others copy it."""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

VARIABLE = "FLEETUNE_TESTS_MADE"
"""Of the environment: the folder, which the first process of a run makes and removes."""


def begin() -> Path | None:
    """Make the run's folder, unless this process was started by one that has; whoever has made it removes it."""
    if VARIABLE in os.environ:
        return None
    os.environ[VARIABLE] = tempfile.mkdtemp(prefix="fleetune-made-")
    return Path(os.environ[VARIABLE])


def made_once(key: str, make: Callable[[Path], object]) -> Path:
    """Return the folder that `make` has filled for a key, here or in another process, which is waited for.

    It is only read. One that was not filled to its end is not used; the lock goes with the process that holds it.
    """
    run = Path(os.environ[VARIABLE])
    folder = run / hashlib.sha256(key.encode()).hexdigest()
    if not folder.exists():
        with open(f"{folder}.lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                making = Path(tempfile.mkdtemp(dir=run))
                try:
                    make(making)
                    making.rename(folder)
                finally:
                    shutil.rmtree(making, ignore_errors=True)
    return folder
