"""`python -m flows.service.flow_process`: the process of one flow run that a worker starts.

It holds a lock as long as it lives, by which the service tells a live run from one whose state on the server is stale.
It is terminated (SIGTERM, so that training leaves a checkpoint) when its worker dies. It runs the flow as Prefect's own
engine does, except that a flow which ends in a failed state has given its reason: no traceback follows.
"""

import os
import signal
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import psutil

from fleetune.launching.child import die_with
from flows.prefect_server import API_URL, answers
from flows.service_files import hold

ORPHAN_S, LOOK_S = 28.0, 0.5
"""Longest life of a flow run after its worker; and seconds between two looks."""
ALONE_S = 3.0
"""Its life after its last stage has ended, where the server is gone too, to which it would report."""


def main() -> None:
    """Run the flow run that the environment names."""
    os.setpgid(0, 0)  # whoever kills its worker's process group leaves it the time for a checkpoint
    worker = os.getppid()
    die_with(worker, signal.SIGTERM)
    threading.Thread(target=_end_after, args=(worker,), daemon=True).start()
    flow_run = os.environ["PREFECT__FLOW_RUN_ID"]
    lock = hold(Path(os.environ["PREFECT_HOME"]).parent, flow_run)
    try:
        _run(UUID(flow_run))
    finally:
        lock.release()


def _end_after(worker: int) -> None:
    """Kill this process when it has not ended within ORPHAN_S of its worker; its stages die with it.

    Without a server and without stages it has nothing left to do: the next `up` says of it that it has crashed.
    """
    while os.getppid() == worker:
        time.sleep(LOOK_S)
    orphaned_s = busy_s = time.monotonic()
    while time.monotonic() - orphaned_s < ORPHAN_S and time.monotonic() - busy_s < ALONE_S:
        if _is_busy():
            busy_s = time.monotonic()
        time.sleep(LOOK_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _is_busy() -> bool:
    """True while stages of this process run, or a server answers it."""
    return bool(psutil.Process().children()) or answers(urlsplit(os.environ[API_URL]).port or 0)


def _run(flow_run_id: UUID) -> None:
    from prefect._internal.control_listener import configure_from_env
    from prefect.engine import handle_engine_signals
    from prefect.flow_engine import load_flow, load_flow_run, run_flow

    configure_from_env()  # the worker tells by this channel that a termination is a cancellation
    with handle_engine_signals(flow_run_id):
        flow_run = load_flow_run(flow_run_id=flow_run_id)
        run_flow(load_flow(flow_run), flow_run=flow_run, return_type="state")


if __name__ == "__main__":
    main()
