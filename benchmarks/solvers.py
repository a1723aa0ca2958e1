"""`python -m benchmarks.solvers [--quick] [--only KIND]`: how good and how fast the planners of kinds deft, split, d2ft
and opfence are, beside what can be proven and beside the papers' baselines.

On random problems in the style of the papers' settings (`benchmarks/parts/solvers/KIND_problems.py` describes them);
baselines run on the same problems, and every comparison is a ratio on one problem.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable

from benchmarks.parts.solvers import d2ft, deft, opfence, split
from benchmarks.report import Figure, Report

KINDS: dict[str, Callable[[bool], list[Figure]]] = {
    "deft": deft.figures,
    "split": split.figures,
    "d2ft": d2ft.figures,
    "opfence": opfence.figures,
}


def main() -> int:
    """Measure, print, and say by the exit code that all was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.solvers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer problems, within 60 s")
    parser.add_argument("--only", choices=list(KINDS), help="one kind of problem")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    report = Report("solvers", asked.quick)
    started_s = time.monotonic()
    for kind, figures in KINDS.items():
        if asked.only in (None, kind):
            print(f"{time.monotonic() - started_s:5.0f} s  {kind}", file=sys.stderr, flush=True)
            report.add(figures(asked.quick))
    print(f"{time.monotonic() - started_s:5.0f} s  done", file=sys.stderr, flush=True)
    report.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
