"""`python -m flows.service.flow_process`: the process of one flow run that a worker starts.

It holds a lock as long as it lives, by which the service tells a live run from one whose state on the server is stale.
It is terminated (SIGTERM, so that training leaves a checkpoint) when its worker dies; the kernel says so up to once for
each thread of a worker, and a second signal would interrupt what the first one has begun. It runs the flow as Prefect's
own engine does, except that a flow which ends in a failed state has given its reason: no traceback follows.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import psutil

from fleetune.launching.child import FORK_SERVER, die_with
from flows.prefect_server import API_URL, HOST
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
    patience = Patience()
    while patience.lasts([psutil.Process()]):
        time.sleep(LOOK_S)
    os.kill(os.getpid(), signal.SIGKILL)


class Patience:
    """How long flow runs that were told to end, or have no worker, are waited for: ORPHAN_S, and ALONE_S where none of
    them has a stage that runs, or a server to report to.
    """

    def __init__(self) -> None:
        self._began_s = self._busy_s = time.monotonic()

    def lasts(self, runs: Iterable[psutil.Process]) -> bool:
        """True while they are worth waiting for."""
        now_s = time.monotonic()
        if _has_server() or any(map(_has_stage, runs)):
            self._busy_s = now_s
        return now_s - self._began_s < ORPHAN_S and now_s - self._busy_s < ALONE_S


def _has_server() -> bool:
    """True while somebody listens on the server's port, be it too busy to answer."""
    try:
        socket.create_connection((HOST, urlsplit(os.environ[API_URL]).port or 0), timeout=LOOK_S).close()
    except TimeoutError:
        return True
    except OSError:
        return False
    return True


def _has_stage(run: psutil.Process) -> bool:
    """True while a process below a flow run lives, save the servers that fork stages: those last as long as it."""
    with suppress(psutil.Error):
        return any(map(_is_stage, run.children(recursive=True)))
    return False


def _is_stage(process: psutil.Process) -> bool:
    with suppress(psutil.Error):  # it has ended
        return FORK_SERVER not in process.cmdline()
    return False


def _run(flow_run_id: UUID) -> None:
    from prefect._internal.control_listener import configure_from_env
    from prefect.engine import handle_engine_signals
    from prefect.flow_engine import load_flow, load_flow_run, run_flow

    from flows.interrupts import defer_interrupts_of_flows

    defer_interrupts_of_flows(once=True)
    configure_from_env()  # the worker tells by this channel that a termination is a cancellation
    with handle_engine_signals(flow_run_id):
        flow_run = load_flow_run(flow_run_id=flow_run_id)
        run_flow(load_flow(flow_run), flow_run=flow_run, return_type="state")


if __name__ == "__main__":
    main()
