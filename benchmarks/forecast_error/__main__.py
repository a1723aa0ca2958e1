"""`python -m benchmarks.forecast_error [--quick] [--dry] [--repeats N] [--image NAME]`: forecast and measured rounds.

Needs an engine and the image fleetune-mounted: `make engine`, `make images`. Devices are containers, limited to shares
of this machine's cores, their links to rates; every run is the pipeline of `fleetune run`, up to training. Each
run of the list is repeated from its profile on; all of it takes over an hour. With --dry the rounds compute nothing,
which shows what they take beyond their parts.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.forecast_error import dry
from benchmarks.forecast_error.runs import ALL, QUICK, run_all
from benchmarks.forecast_error.table import table
from benchmarks.report import Report, progress_printer, wide_console


def main() -> int:
    """Print the list of runs, run all of it and print the table; returns 1 if a figure has no value."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forecast_error", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two runs on one small fleet, within 60 s")
    parser.add_argument("--image", default="fleetune-mounted", help="image of the containers")
    parser.add_argument("--repeats", type=int, default=3, help="how often each is run (default: 3; --quick: 1)")
    parser.add_argument("--dry", action="store_true", help="rounds without computing, beside the sum of their parts")
    arguments = parser.parse_args()
    repeats = 1 if arguments.quick else max(1, arguments.repeats)
    os.environ["HF_HUB_OFFLINE"] = "1"
    report = Report("forecast_error", arguments.quick)
    report_progress = progress_printer()
    cases = (QUICK,) if arguments.quick else ALL
    listed = [f"{case.name}/{strategy}" for case in cases for strategy in case.strategies]
    report_progress(f"list of {len(listed)} runs, each {1 if arguments.dry else repeats} x: {', '.join(listed)}")
    with tempfile.TemporaryDirectory(prefix="fleetune-fleet-") as folder:
        if arguments.dry:
            sheet = dry.sheet(cases, arguments.image, Path(folder), report_progress)
        else:
            runs = [
                run
                for case in cases
                for run in run_all(
                    case,
                    arguments.image,
                    Path(folder) / case.name,
                    report_progress,
                    repeats=repeats,
                    profiles_each=not arguments.quick,
                )
            ]
            sheet = table(cases, runs)
    sheet.print(wide_console())
    report.add(sheet.figures)
    report.print()
    return int(any(figure.value is None for figure in report.figures))


if __name__ == "__main__":
    sys.exit(main())
