"""Starts commands in other processes, with one interface for local processes and for containers.

A `Launcher` starts a `Command` and returns a `Job`, which streams its output and stops it; secrets travel in the first
line of the command's stdin, never in its arguments or environment. Not used: multiprocessing (it pickles, and children
inherit the parent's state) and subprocess pools (they hide how a child died).
"""

from fleetune.launching.factory import open_sites, open_stage_launchers, stage_image_id
from fleetune.launching.job import (
    MALLOC_ENVIRONMENT,
    MODEL_MODULES,
    Command,
    Job,
    Launcher,
    describe_exit,
    describe_used_memory,
    thread_environment,
)
from fleetune.launching.placement import ListenSettings, LocalSites, Sites
from fleetune.launching.process import ProcessLauncher

__all__ = [
    "MALLOC_ENVIRONMENT",
    "MODEL_MODULES",
    "Command",
    "Job",
    "Launcher",
    "ListenSettings",
    "LocalSites",
    "ProcessLauncher",
    "Sites",
    "describe_exit",
    "describe_used_memory",
    "open_sites",
    "open_stage_launchers",
    "stage_image_id",
    "thread_environment",
]
