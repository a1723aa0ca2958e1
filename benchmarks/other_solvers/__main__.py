"""`python -m benchmarks.other_solvers [--quick] [--only KIND]`: speed and quality of the solvers of four kinds.

The kinds are deft, split, d2ft and opfence; plans are compared with proven bounds and the papers' baselines.

Problems are random, in the style of the papers' settings (described in `benchmarks/other_solvers/KIND.py`).
Baselines run on the same problems, and every comparison is a ratio on one problem.
"""

import argparse
import os
import sys
from collections.abc import Callable

from benchmarks.other_solvers import d2ft, deft, opfence, split
from benchmarks.report import Figure, Report, progress_printer

KINDS: dict[str, Callable[[bool], list[Figure]]] = {
    "deft": deft.figures,
    "split": split.figures,
    "d2ft": d2ft.figures,
    "opfence": opfence.figures,
}


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.other_solvers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer problems, within 60 s")
    parser.add_argument("--only", choices=list(KINDS), help="one kind of problem")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    report = Report("other_solvers", arguments.quick)
    report_progress = progress_printer()
    for kind, figures in KINDS.items():
        if arguments.only in (None, kind):
            report_progress(kind)
            report.add(figures(arguments.quick))
    report_progress("done")
    report.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
