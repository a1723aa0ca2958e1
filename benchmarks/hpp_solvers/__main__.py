"""`python -m benchmarks.hpp_solvers [--quick]`: speed and quality of the solvers of kind "hpp".

Measures planning time on large problems. Compares `search` with the optimum of tiny problems (by enumeration of all
plans), with random-restart local search of a minute per problem on larger ones, and with every baseline on all of them.
"""

import argparse
import os
import sys
from collections.abc import Callable

from benchmarks.hpp_solvers.quality import BaselineTally, compare_with_enumeration, compare_with_restarts
from benchmarks.hpp_solvers.speed import cold_start, speed
from benchmarks.report import Figure, Report, progress_printer


def run(quick: bool, report_progress: Callable[[str], None]) -> list[Figure]:
    """All figures of the benchmark."""
    tally = BaselineTally()
    report_progress("first call, nothing compiled yet")
    figures = [cold_start()]
    report_progress("large problems")
    figures += speed(tally, repeats=1 if quick else 3, quick=quick)
    report_progress("tiny problems, all plans enumerated")
    figures += compare_with_enumeration(tally, problems=20 if quick else 100)
    report_progress("30 layers x 8 devices beside random-restart local search")
    figures += compare_with_restarts(tally, problems=2 if quick else 20, seconds=5.0 if quick else 60.0)
    return [*figures, *tally.figures()]


def main() -> int:
    """Measure and print; returns the exit code."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.hpp_solvers", description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="fewer and smaller, within 60 s")
    quick = arguments.parse_args().quick
    os.environ["OMP_NUM_THREADS"] = "1"
    report = Report("hpp_solvers", quick)
    report.add(run(quick, progress_printer()))
    report.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
