"""`python -m benchmarks.recovery [--quick]`: new plans after the loss of each device of a fleet.

Light keeps the order of the groups and moves cut points (Asteroid §3.4); heavy plans anew. Compared are the time to
plan, the throughput by the clock, and the bytes of units that devices must be given.
"""

import argparse
import sys

from benchmarks.recovery.revisions import revisions, sixteen_devices
from benchmarks.report import Report, progress_printer, wide_console


def main() -> int:
    """Measure and print; returns the exit code."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="one model and fewer repeats, within 60 s")
    quick = arguments.parse_args().quick
    report, report_progress = Report("recovery", quick), progress_printer()
    report_progress("each device of environment D")
    sheet = revisions(quick)
    sheet.print(wide_console())
    report_progress("sixteen devices")
    report.add([*sheet.figures, *sixteen_devices(quick)])
    report.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
