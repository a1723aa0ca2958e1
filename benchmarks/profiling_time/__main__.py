"""`python -m benchmarks.profiling_time [--quick]`: profiling time of each device, beside Table 8 of the Asteroid paper.

Profiles the paper's four models on three emulated devices of 1.0, 0.6 and 0.3 cores, all three at once. With
`--launcher docker` the devices are containers limited to their shares.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.profiling_time.table8 import (
    CORES,
    MODELS,
    QUICK_CORES,
    QUICK_MODELS,
    Model,
    fleet,
    table8,
    time_profiling,
)
from benchmarks.report import Report, Sheet, progress_printer, wide_console
from fleetune.contracts.fleet import IMAGE, LAUNCHERS, PROCESS, Fleet
from fleetune.launching import Sites, open_sites
from fleetune.launching.placement import FleetPlacement


def run(devices: Fleet, models: Sequence[Model], places: Sites, report_progress: Callable[[str], None]) -> Sheet:
    """Profiles the models one after another, each on all devices at once; opens and closes `places`."""
    made = []
    with TemporaryDirectory(prefix="fleetune-profiling-") as folder, places as sites:
        for model in models:
            report_progress(f"{model.name}, batch sizes up to {model.largest}")
            made.append(time_profiling(model, devices, sites, Path(folder).resolve() / model.file))
    return table8(made, devices)


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiling_time", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one model on one device, within 60 s")
    parser.add_argument("--launcher", choices=LAUNCHERS, default=PROCESS, help="how devices are started")
    parser.add_argument("--image", default=IMAGE, help="image of their containers")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    report = Report("profiling_time", arguments.quick)
    report_progress = progress_printer()
    devices = fleet(QUICK_CORES if arguments.quick else CORES, arguments.launcher, arguments.image)
    models = QUICK_MODELS if arguments.quick else MODELS
    sheet = run(devices, models, open_sites(FleetPlacement.from_fleet(devices), report_progress), report_progress)
    sheet.print(wide_console())
    report.add(sheet.figures)
    report.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
