"""A worker whose averages have parts of a few elements, so that a small tensor takes many of them."""

import sys
from dataclasses import replace
from functools import partial

from fleetune.launching import Command, Job, ProcessLauncher
from fleetune.training import worker_state
from fleetune.training.averaging import parts_of
from fleetune.training.worker import main
from fleetune.training.worker_command import WORKER

PART_BYTES = 1000
"""A matrix of 32 x 32 in double precision has nine parts."""


class SmallPartsLauncher:
    """Starts workers as this module."""

    def start(self, command: Command) -> Job:
        """Start a command."""
        assert command.module == WORKER
        return ProcessLauncher().start(replace(command, module=__spec__.name))


if __name__ == "__main__":
    worker_state.parts_of = partial(parts_of, part_bytes=PART_BYTES)
    sys.exit(main())
