"""What a command does, told sentence by sentence while it is done."""

import sys
from collections.abc import Callable, Iterator

from fleetune.errors import FleetuneError


def told(work: Callable[[], Iterator[str]]) -> int:
    """Print each sentence of the work as it comes, and what it failed of; the exit code."""
    try:
        for sentence in work():
            sys.stdout.write(f"{sentence}\n")
            sys.stdout.flush()
    except FleetuneError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0
