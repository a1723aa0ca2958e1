"""`python -P child.py PARENT MODULE ...` runs a module that must not outlive its parent, and shows that it lives.

The wrapper runs in the child, because code between fork and exec is unsafe in a process with threads. The kernel sends
SIGKILL when the parent thread ends; the parent's process id tells whether it had ended before that was arranged.

It is started by its file's path, so that it finds the code of its parent, installed or not. `-P` keeps the working
directory off the module path: files there are data, even one that is called `json.py`.

A process that waits uses no processor time, and neither does one that was stopped. So a thread of each uses some
(`show_life`), which its launcher sees (`fleetune.launching.life_watch`). PARENT is 0 where there is none, and
`container` where the launcher sees no more than the output.
"""

import ctypes
import gc
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Iterator

PR_SET_PDEATHSIG = 1
CPUCLOCK_SCHED = 2
"""Clock of a process's time on processors, in the id that clock_getcpuclockid(3) makes of a process id."""
BEAT_S, MARK_S = 0.5, 2.0
"""Intervals of the signs of life: of processor time, and of marks."""
MARK = b"\0\n"
"""What a container writes to stderr while it lives; its log gets none of it."""
IN_CONTAINER = "container"
FORK_SERVER = "fleetune.launching.fork_server"
"""It has one thread, since it forks, and its own loop turns every BEAT_S."""
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


def processor_time_ns(pid: int) -> int | None:
    """Nanoseconds of processor time that all threads of a process have used; None if it has ended, or the kernel does
    not tell."""
    try:
        return time.clock_gettime_ns(~pid << 3 | CPUCLOCK_SCHED)
    except OSError:
        return None


def show_life() -> None:
    """Use a little processor time every BEAT_S from now on, in a thread of its own."""

    def beat() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the main thread
        while True:
            time.sleep(BEAT_S)

    threading.Thread(target=beat, name="life", daemon=True).start()


def mark_life() -> None:
    """Fork a process that marks stderr every MARK_S, while the processor time of this one grows.

    A thread could not: a long computation may keep the interpreter from it. Forked before anything is imported, it
    takes 4 MB, and 9 at most.
    """
    process = os.getpid()
    if os.fork():
        return
    gc.disable()  # a collection would write to, and so copy, all that both share
    die_with(process)
    before = None
    while True:
        time.sleep(MARK_S)
        used = processor_time_ns(process)
        if used is None or used != before:
            os.write(2, MARK)
        before = used


def main() -> None:
    """Tie this process to its parent, show that it lives, then run the module with its arguments."""
    parent, module = sys.argv[1:3]
    sys.path[:] = _module_path(sys.path)
    if parent == IN_CONTAINER:
        mark_life()
    elif int(parent):
        die_with(int(parent))
    gc.set_threshold(*GC_THRESHOLDS)
    if module != FORK_SERVER:
        show_life()
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
