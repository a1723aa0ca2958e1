"""`python -m benchmarks.asteroid_tables [--quick]`: the Asteroid paper's comparisons on its environments, simulated.

Our numbers beside the paper's: Tables 2, 4 and 7, existing systems (§5.3), ablation of planning (Fig. 15a), schedules
and warm-ups with their memory (Fig. 15b), scaling (Fig. 18). Both with the paper's planner (`asteroid`) and with ours
(`search`), which may leave devices out. The paper's bars are images: only numbers in its text can be compared.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks.parts.asteroid import ablation, scaling, schedules, speedups, systems, volume
from benchmarks.parts.asteroid.planned import FORCED
from benchmarks.parts.asteroid.planning_time import table7
from benchmarks.parts.asteroid.setting import EFFICIENTNET, MOBILENET, MODELS
from benchmarks.parts.asteroid.sheet import Sheet, console
from benchmarks.parts.asteroid.whole import fair
from benchmarks.report import Report


def sheets(quick: bool) -> Iterator[Callable[[], Sheet]]:
    """Every table, to be made one after another; quick: two models, fewer fleets."""
    models = (EFFICIENTNET, MOBILENET) if quick else MODELS
    yield lambda: table7(models)  # first: it times what others then reuse
    yield lambda: volume.table2(models)
    yield lambda: speedups.table4(models, ("search",) if quick else ("search", FORCED))
    yield lambda: speedups.by_bytes((EFFICIENTNET, MOBILENET))
    if not quick:
        yield lambda: speedups.micro_batches((32, 64, 128, 256))
    yield lambda: systems.systems(models)
    yield lambda: ablation.fig15a((EFFICIENTNET, MOBILENET))
    yield schedules.fig15b
    yield lambda: scaling.fig18((1, 2, 4, 6) if quick else tuple(range(1, 9)))
    yield lambda: fair(models, forced=not quick)


def main() -> int:
    """Plan, print, and say by the exit code that all was planned."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.asteroid_tables", description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="two of four models, within 60 s")
    quick = arguments.parse_args().quick
    report = Report("asteroid_tables", quick)
    started_s, out = time.monotonic(), console()
    for make in sheets(quick):
        sheet = make()
        sheet.print(out)
        report.add(sheet.figures)
        print(f"{time.monotonic() - started_s:5.0f} s  {sheet.title}", file=sys.stderr, flush=True)
    report.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
