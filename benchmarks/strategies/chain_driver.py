"""Trains a chain of two segments with the code that PYTHONPATH names first, as often as stdin asks; run as a script.

`python -P chain_driver.py FOLDER`: prints a line when it is ready; then every line of stdin, a number of rounds, is
answered by the median seconds of a round. It uses only names that have been there since before programs of steps.
"""

import statistics
import sys
from pathlib import Path

import transformers

from benchmarks.runtime.workload import MICRO_BATCH_SAMPLES, MODEL, Workload, prepare_workload
from fleetune.contracts.plan import Lane, Plan, PlanResult, Segment, Share

CORES = 0.7
WARM_UP = 2


def chain(workload: Workload) -> PlanResult:
    """Return a pipeline whose cut depends on no measurement: half of the units on each device."""
    units = tuple(unit.name for unit in workload.profile.units)
    halves = (units[: len(units) // 2], units[len(units) // 2 :])
    segments = tuple(
        Segment(units=half, shares=(Share(device=device, samples=MICRO_BATCH_SAMPLES),), warmup=2 - place)
        for place, (half, device) in enumerate(zip(halves, ("left", "right"), strict=True))
    )
    plan = Plan(
        strategy="pp",
        micro_batch_samples=MICRO_BATCH_SAMPLES,
        micro_batches=4,
        lanes=(Lane(name="main", segments=segments),),
    )
    return PlanResult(plan=plan, objective=1.0, lower_bound=None, status="feasible", solve_s=0.0, method="by hand")


def main(folder: Path) -> None:
    """Prepare, then train as asked."""
    transformers.utils.logging.disable_progress_bar()
    workload = prepare_workload(folder, MODEL, CORES, lambda sentence: None)
    plan = chain(workload)
    print("ready", flush=True)
    for number, line in enumerate(sys.stdin):
        metrics = workload.train(plan, int(line) + WARM_UP, f"chain-{number}")
        print(statistics.median(each.round_s for each in metrics.rounds[WARM_UP:]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
