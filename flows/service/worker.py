"""`python -m flows.service.worker POOL`: Prefect's process worker, which ends after its flow runs.

Prefect's own command kills the flow runs of a worker that is terminated, and loses the rounds since their checkpoints.
It also waits for ever for a flow run that is frozen, which holds its deployment's one slot.
"""

import abc
import asyncio
import math
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from prefect.logging.configuration import setup_logging
from prefect.workers.process import ProcessWorker

from fleetune.launching.child import processor_time_ns
from fleetune.launching.life_watch import LOOK_S as LIFE_LOOK_S
from fleetune.launching.life_watch import Silence
from flows.service.flow_process import LOOK_S, Patience
from flows.service_files import FOLDER, SUBMITTED

NAME, QUERY_S = "fleetune", 2.0


class Worker(ProcessWorker, abc.ABC):  # abstract: so Prefect does not offer it as another type of worker
    """Starts no flow run once `ends` is set. It asks the server every QUERY_S, and at once after a submission."""

    ends = False
    asked_s, seen_ns = -math.inf, 0

    async def get_and_submit_flow_runs(self) -> Any:
        """Start the flow runs that are due; Prefect calls it many times a second."""
        mark_ns = touched_ns(Path(os.environ["PREFECT_HOME"]) / FOLDER / SUBMITTED)
        if self.ends or (mark_ns == self.seen_ns and time.monotonic() < self.asked_s + QUERY_S):
            return []
        self.asked_s, self.seen_ns = time.monotonic(), mark_ns
        return await super().get_and_submit_flow_runs()


def touched_ns(path: Path) -> int:
    """When a file was touched last, in nanoseconds since 1970; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def main() -> None:
    """Work until SIGTERM or Ctrl-C."""
    setup_logging()
    asyncio.run(_work(sys.argv[1]))


async def _work(pool: str) -> None:
    worker, loop = Worker(work_pool_name=pool, name=NAME), asyncio.get_running_loop()
    work, watch = asyncio.create_task(worker.start(printer=_ignore)), asyncio.create_task(_watch_runs())
    ending: list[asyncio.Task[None]] = []

    async def end() -> None:
        await asyncio.to_thread(end_runs, os.getpid())
        work.cancel()

    def told() -> None:
        worker.ends = True
        ending[:] = ending or [asyncio.create_task(end())]

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    with suppress(asyncio.CancelledError):
        await work
    watch.cancel()


async def _watch_runs() -> None:
    silence = Silence()
    while True:
        await asyncio.to_thread(end_silent_runs, os.getpid(), silence)
        await asyncio.sleep(LIFE_LOOK_S)


def end_silent_runs(worker: int, silence: Silence) -> None:
    """Kill the flow runs of a worker that show no sign of life, which then read Crashed; call it again and again.
    `worker`: its process."""
    with suppress(psutil.Error):
        runs = {f"{run.pid} of {run.create_time()}": run for run in psutil.Process(worker).children()}
        for name in silence.look({name: processor_time_ns(run.pid) for name, run in runs.items()}):
            runs[name].kill()


def end_runs(worker: int) -> None:
    """Tell the flow runs of a worker to end, and wait for them: training writes a checkpoint. `worker`: its process.

    Those that have nothing left to do but to report to a server that is gone, as when the machine shuts down, end
    themselves after their worker.
    """
    patience = Patience()
    told: set[psutil.Process] = set()
    with suppress(psutil.Error):
        while (runs := set(psutil.Process(worker).children())) and patience.lasts(runs):
            for run in runs - told:
                with suppress(psutil.Error):
                    run.terminate()
            told |= runs
            psutil.wait_procs(list(runs), timeout=LOOK_S)


def _ignore(_: str) -> None:
    """Discard what Prefect's command would print."""


if __name__ == "__main__":
    main()
