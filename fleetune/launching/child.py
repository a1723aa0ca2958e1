"""`python -P child.py PARENT MODULE ...`: run a module that must not outlive its parent.

A tiny wrapper in the child itself, because code between fork and exec is unsafe in a process with threads. The kernel
sends SIGKILL when the parent thread ends; a parent that ended before that was arranged is noticed by its number.

Started by its file's name, it needs no path to be found by and runs the code of its parent, installed or not. `-P`
keeps the working directory off the path: whatever lies there is data, even when it is called `json.py`.
"""

import ctypes
import gc
import os
import runpy
import signal
import sys
from collections.abc import Iterator

PR_SET_PDEATHSIG = 1
SELDOM = (100_000, 50, 100)
"""Importing torch and transformers makes a million objects that stay; looking through them for garbage at Python's
usual pace takes a fifth of the time."""


def _path(found: list[str]) -> Iterator[str]:
    """The path on which the code of this file is found: behind Python's own, before what is installed."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    missing = root not in found
    for place in found:
        if missing and place.endswith(("site-packages", "dist-packages")):
            yield root
            missing = False
        yield place
    if missing:
        yield root


def die_with(parent: int) -> None:
    """From now on this process is killed when `parent` ends; at once if it has ended already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Bind this process to its parent (0: its container ends it), then become the module with its own arguments."""
    parent = int(sys.argv[1])
    if parent:
        die_with(parent)
    sys.path[:] = _path(sys.path)
    gc.set_threshold(*SELDOM)
    module = sys.argv[2]
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
