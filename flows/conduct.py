"""A whole run without an engine: stages in order, those that belong beside each other in threads."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from fleetune.store import RunRecord
from flows.runner import Outcome, Runner
from stages.catalog import waves

Wave = Callable[[Iterable[str]], None]


def conduct(runner: Runner) -> RunRecord:
    """Run every stage that has to; raises the first error after all that ran beside it has ended."""
    with runner, ThreadPoolExecutor(thread_name_prefix="stage") as pool:
        try:
            for wave in waves(runner.rows):
                _all([pool.submit(runner.stage, row.name) for row in wave])
        except BaseException:
            runner.stop()  # before the pool waits for its threads
            raise
    return runner.record


def _all(futures: list[Future[Outcome]]) -> None:
    wait(futures)
    for future in futures:
        future.result()
