"""`python -m benchmarks.planning [--quick]`: how fast the planners of kind "hpp" are, and how good.

Speed on large problems; `search` beside the optimum of tiny ones found by trying every plan, beside random-restart
local search with a minute for each problem where nothing can be enumerated, and beside every baseline on all of them.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable

from benchmarks.parts.planning.against_all import against_all_plans
from benchmarks.parts.planning.against_restarts import against_restarts
from benchmarks.parts.planning.speed import cold_start, speed
from benchmarks.parts.planning.tally import Tally
from benchmarks.report import Figure, Report


def run(quick: bool, say: Callable[[str], None]) -> list[Figure]:
    """Every figure."""
    tally = Tally()
    say("a first call, with nothing compiled yet")
    found = [cold_start()]
    say("large problems")
    found += speed(tally, repeats=1 if quick else 3, quick=quick)
    say("tiny problems, every plan tried")
    found += against_all_plans(tally, problems=20 if quick else 100)
    say("30 layers x 8 devices beside random-restart local search")
    found += against_restarts(tally, problems=2 if quick else 20, seconds=5.0 if quick else 60.0)
    return [*found, *tally.figures()]


def main() -> int:
    """Measure, print, and say by the exit code that all was measured."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.planning", description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="fewer and smaller, within 60 s")
    quick = arguments.parse_args().quick
    os.environ["OMP_NUM_THREADS"] = "1"
    report = Report("planning", quick)
    started_s = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - started_s:5.0f} s  {what}", file=sys.stderr, flush=True)

    report.add(run(quick, say))
    report.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
