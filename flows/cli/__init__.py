"""The command line `fleetune`: calls the pipeline and the store, and prints for people or (--json) for programs.

Only commands that need Prefect or torch import them, so that help appears at once. Rejected: argparse, which has no
tables, progress bars or completion.
"""

import os
import signal
import sys
from typing import TYPE_CHECKING

from fleetune.errors import STOPPED

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

REPEAT_AFTER_S = 0.01


def main() -> None:
    """Entry point; exits with the code of the command. Ctrl-C works at every moment, also during imports and exit."""
    sys.unraisablehook = _unraisable
    try:
        from flows.cli.app import app

        app()
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(STOPPED)
    finally:
        signal.signal(signal.SIGINT, lambda *_: os._exit(STOPPED))  # child processes clean up by themselves


def _unraisable(ignored: "UnraisableHookArgs") -> None:
    """Repeat a Ctrl-C shortly after it arrived where Python cannot raise, as in a callback of its import locks."""
    if ignored.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(ignored)
        return
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, REPEAT_AFTER_S)
