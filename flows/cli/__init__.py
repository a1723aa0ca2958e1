"""The command line `fleetune`: asks the pipeline and the store, and tells a person or (with --json) a program.

May import: flows and everything below; Prefect and torch only through a command that needs them, so that the help
appears at once. Set aside: argparse, which would leave tables, bars and completion of options to us.
"""

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

STOPPED = 130
"""128 + SIGINT, as shells have it."""
AGAIN_S = 0.01


def main() -> None:
    """Entry point; leaves with the exit code of the command. Ctrl-C is heard at every moment, also while modules are
    imported and while the process ends."""
    sys.unraisablehook = _unraisable
    try:
        from flows.cli.app import app

        app()
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(STOPPED)
    finally:
        signal.signal(signal.SIGINT, lambda *_: os._exit(STOPPED))  # what is left to do, children do by themselves


def _unraisable(ignored: "UnraisableHookArgs") -> None:
    """Where Python cannot raise (a callback of its import locks, say), a Ctrl-C would be lost: it comes again a little
    later, when this callback is over."""
    if ignored.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(ignored)
        return
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
