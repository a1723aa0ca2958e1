"""`python -m benchmarks.asteroid_tables [--quick]`: the Asteroid paper's comparisons on simulated environments.

Prints our numbers beside the paper's for Tables 2, 4 and 7, existing systems (§5.3), the ablation of planning
(Fig. 15a), schedules and warm-ups with their memory (Fig. 15b) and scaling (Fig. 18), with the paper's planner
(`asteroid`) and with ours (`search`), which may leave devices out. The bars of the paper's figures are images, so only
numbers in its text can be compared.
"""

import argparse
import sys
from collections.abc import Callable, Iterator

from benchmarks.asteroid_tables import ablations, comparisons, speedups
from benchmarks.asteroid_tables.paper import EFFICIENTNET, MOBILENET, MODELS
from benchmarks.asteroid_tables.plans import SEARCH_ALL_DEVICES
from benchmarks.report import Report, Sheet, progress_printer, wide_console


def sheets(quick: bool) -> Iterator[Callable[[], Sheet]]:
    """Yields a function for every table; `quick` has two models and fewer fleets."""
    models = (EFFICIENTNET, MOBILENET) if quick else MODELS
    yield lambda: comparisons.table7(models)  # first: it times the plans that later tables reuse
    yield lambda: comparisons.table2(models)
    yield lambda: speedups.table4(models, ("search",) if quick else ("search", SEARCH_ALL_DEVICES))
    yield lambda: speedups.by_bytes((EFFICIENTNET, MOBILENET))
    if not quick:
        yield lambda: speedups.micro_batches((32, 64, 128, 256))
    yield lambda: comparisons.existing_systems(models)
    yield lambda: ablations.fig15a((EFFICIENTNET, MOBILENET))
    yield ablations.fig15b
    yield lambda: speedups.scaling((1, 2, 4, 6) if quick else tuple(range(1, 9)))
    yield lambda: comparisons.search_over_asteroid(models, forced=not quick)


def main() -> int:
    """Plan and print all tables; returns the exit code."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.asteroid_tables", description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="two of four models, within 60 s")
    quick = arguments.parse_args().quick
    report = Report("asteroid_tables", quick)
    report_progress, console = progress_printer(), wide_console()
    for make in sheets(quick):
        sheet = make()
        sheet.print(console)
        report.add(sheet.figures)
        report_progress(sheet.title)
    report.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
