"""`python -P child.py PARENT MODULE ...` runs a module that must not outlive its parent.

The wrapper runs in the child, because code between fork and exec is unsafe in a process with threads. The kernel sends
SIGKILL when the parent thread ends; the parent's process id tells whether it had ended before that was arranged.

It is started by its file's path, so that it finds the code of its parent, installed or not. `-P` keeps the working
directory off the module path: files there are data, even one that is called `json.py`.
"""

import ctypes
import gc
import os
import runpy
import signal
import sys
from collections.abc import Iterator

PR_SET_PDEATHSIG = 1
GC_THRESHOLDS = (100_000, 50, 100)
"""Importing torch and transformers makes a million permanent objects; Python's default thresholds spend a fifth of the
import on searching these for garbage."""


def _module_path(path: list[str]) -> Iterator[str]:
    """`sys.path` with the folder of this project's code, after the standard library and before installed packages."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    missing = root not in path
    for folder in path:
        if missing and folder.endswith(("site-packages", "dist-packages")):
            yield root
            missing = False
        yield folder
    if missing:
        yield root


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Have this process get signal `number` when `parent` ends; at once if it has ended already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def main() -> None:
    """Tie this process to its parent (0: no parent, as in a container), then run the module with its arguments."""
    parent = int(sys.argv[1])
    if parent:
        die_with(parent)
    sys.path[:] = _module_path(sys.path)
    gc.set_threshold(*GC_THRESHOLDS)
    module = sys.argv[2]
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
