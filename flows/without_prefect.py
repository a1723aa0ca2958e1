"""Runs of the pipeline without Prefect: for notebooks, measurements and tests, of which its server would take time."""

from concurrent.futures import Future, ThreadPoolExecutor, wait

from fleetune.store import RunRecord
from flows.runner import Outcome, Runner
from stages.catalog import waves


def run_without_prefect(runner: Runner) -> RunRecord:
    """Run every stage in threads; raises the first error once the stages beside it have ended."""
    with runner, ThreadPoolExecutor(thread_name_prefix="stage") as pool:
        try:
            for wave in waves(runner.specs):
                _all([pool.submit(runner.run_stage, spec.name) for spec in wave])
        except BaseException:
            runner.stop()  # before the pool waits for its threads
            raise
    return runner.record


def _all(futures: list[Future[Outcome]]) -> None:
    wait(futures)
    for future in futures:
        future.result()
