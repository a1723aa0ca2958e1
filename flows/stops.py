"""States of flow runs that somebody told to end: by `fleetune down`, or by Ctrl-C in a terminal.

Prefect calls them Crashed, aborted by a termination signal, which reads as if something had gone wrong.
"""

from typing import Any

from prefect._internal.control_listener import get_intent
from prefect.client.schemas.objects import State
from prefect.states import Cancelled

from fleetune.store import Store
from flows.next_step import and_next
from flows.service_files import ServiceFiles


def is_down(root: str) -> bool:
    """True when a termination signal comes from `fleetune down`, and from nobody's Cancel in the UI."""
    return get_intent() is None and ServiceFiles(Store(root).local).going_down.exists()


def stopped_by_down(next_command: str) -> State[Any]:
    """The state of a flow run that `down` has ended."""
    return Cancelled(
        message=and_next("stopped by fleetune down; Retry in the UI goes on, after fleetune up", next_command)
    )


def stopped_by_hand(next_command: str, in_part: bool) -> State[Any]:
    """The state of a command's flow run after Ctrl-C; `in_part`: of a run within another one."""
    return Cancelled(
        message=and_next("stopped with the run that it is a part of" if in_part else "stopped by Ctrl-C", next_command)
    )
