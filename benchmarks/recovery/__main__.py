"""`python -m benchmarks.recovery [--quick] [--containers]`: what the loss of each device of a fleet costs.

Trainings of real processes lose a device: how soon it is found, and how soon a round is committed again. New plans:
light keeps the order of the groups and moves cut points (Asteroid §3.4), heavy plans anew. Compared are the time to
plan, the throughput by the clock, and the bytes of units that devices must be given.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.recovery.containers import container_losses
from benchmarks.recovery.losses import backups_with_lora, losses
from benchmarks.recovery.revisions import revisions, sixteen_devices
from benchmarks.report import Report, progress_printer, wide_console


def main() -> int:
    """Measure and print; returns the exit code."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="one device, one model and fewer repeats, within 60 s")
    arguments.add_argument(
        "--containers",
        action="store_true",
        help="only how soon a killed and a paused container are found; needs an engine and the image fleetune-mounted",
    )
    given = arguments.parse_args()
    quick = given.quick
    report, report_progress = Report("recovery", quick), progress_printer()
    if given.containers:
        with tempfile.TemporaryDirectory(prefix="fleetune-recovery-") as folder:
            lost = container_losses(Path(folder), quick, report_progress)
        lost.print(wide_console())
        report.add(lost.figures)
        report.print()
        return 0
    with tempfile.TemporaryDirectory(prefix="fleetune-recovery-") as folder:
        lost = losses(Path(folder), quick, report_progress)
        lost.print(wide_console())
        report.add([*lost.figures, *backups_with_lora(Path(folder), quick, report_progress)])
    report_progress("plans for environment D")
    sheet = revisions(quick)
    sheet.print(wide_console())
    report_progress("sixteen devices")
    report.add([*sheet.figures, *sixteen_devices(quick)])
    report.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
