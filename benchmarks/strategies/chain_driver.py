"""Trains a chain of two segments with the code that PYTHONPATH names first; run as a script.

`python -P chain_driver.py FOLDER ROUNDS`: prints a line when it is ready, trains once stdin ends, and prints a line for
each round that is committed. It uses only names that have been there since before programs of steps.
"""

import sys
from pathlib import Path

import transformers

from benchmarks.runtime.workload import MICRO_BATCH_SAMPLES, MODEL, Workload, prepare_workload
from fleetune.contracts.plan import Lane, Plan, PlanResult, Segment, Share

CORES = 1.0
"""One thread a device, and no rests, which would pass while the processes stand still."""


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


def main(folder: Path, rounds: int) -> None:
    """Prepare, then train."""
    transformers.utils.logging.disable_progress_bar()
    workload = prepare_workload(folder, MODEL, CORES, lambda sentence: None)
    plan = chain(workload)
    print("ready", flush=True)
    sys.stdin.read()
    workload.train(plan, rounds, "chain", progress=tell)


def tell(what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
    """Print a line for progress of the training."""
    if what == "training":
        print(detail, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
