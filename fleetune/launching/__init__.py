"""Starting work in other processes, one interface for every place they may run in.

May import errors and contracts. A `Launcher` starts a `Command` and gives back a `Job` to listen to and to stop;
secrets travel in the command's first line of stdin, never in its arguments or environment. Set aside: multiprocessing
(pickles, and inherits the parent's state) and subprocess pools (they hide how a child died).
"""

from fleetune.launching.job import (
    KEEPS_MEMORY,
    Command,
    Job,
    Launcher,
    exit_in_words,
    thread_environment,
    used_in_words,
)
from fleetune.launching.opening import open_sites, open_stages
from fleetune.launching.process import ProcessLauncher
from fleetune.launching.sites import Door, Here, Sites

__all__ = [
    "KEEPS_MEMORY",
    "Command",
    "Door",
    "Here",
    "Job",
    "Launcher",
    "ProcessLauncher",
    "Sites",
    "exit_in_words",
    "open_sites",
    "open_stages",
    "thread_environment",
    "used_in_words",
]
