"""`python -m benchmarks.profiling_time [--quick]`: how long profiling takes each device, beside the Asteroid paper.

The paper's four models on three emulated devices of 1.0, 0.6 and 0.3 cores, all three at once. With
`--launcher docker` the devices are containers held to their shares.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.parts.asteroid.sheet import Sheet, console
from benchmarks.parts.profiling.setting import CORES, MODELS, QUICK_CORES, QUICK_MODELS, Model, fleet
from benchmarks.parts.profiling.table import table8
from benchmarks.parts.profiling.timed import timed
from benchmarks.report import Report
from fleetune.contracts.fleet import IMAGE, LAUNCHERS, PROCESS, Fleet
from fleetune.launching import Sites, open_sites
from fleetune.launching.placement import FleetPlacement


def run(devices: Fleet, models: Sequence[Model], places: Sites, say: Callable[[str], None]) -> Sheet:
    """Every model on all devices, one model after another; `places` are opened here."""
    made = []
    with TemporaryDirectory(prefix="fleetune-profiling-") as folder, places as sites:
        for model in models:
            say(f"{model.name}, batch sizes up to {model.largest}")
            made.append(timed(model, devices, sites, Path(folder).resolve() / model.file))
    return table8(made, devices)


def main() -> int:
    """Measure, print, and say by the exit code that all was measured."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.profiling_time", description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="one model on one device, within 60 s")
    arguments.add_argument("--launcher", choices=LAUNCHERS, default=PROCESS, help="what the devices are")
    arguments.add_argument("--image", default=IMAGE, help="of their containers")
    asked = arguments.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    report = Report("profiling_time", asked.quick)
    started_s = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - started_s:5.0f} s  {what}", file=sys.stderr, flush=True)

    devices = fleet(QUICK_CORES if asked.quick else CORES, asked.launcher, asked.image)
    models = QUICK_MODELS if asked.quick else MODELS
    sheet = run(devices, models, open_sites(FleetPlacement.from_fleet(devices), say), say)
    sheet.print(console())
    report.add(sheet.figures)
    report.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
