"""`python -m benchmarks.fleet [--quick] [--image NAME]`: forecasts against rounds measured on fleets of containers.

Needs an engine and the image fleetune-mounted: `make engine`, `make images`. Containers are held to shares of this
machine's cores, their links to rates; every run is the pipeline that `fleetune run` conducts, up to training.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.parts.asteroid.sheet import console
from benchmarks.parts.fleet.runs import run_all
from benchmarks.parts.fleet.setting import ALL, QUICK
from benchmarks.parts.fleet.table import table
from benchmarks.report import Report


def main() -> int:
    """Say what will be run, run all of it, print; the exit code says that all was measured."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="two runs on one small fleet, within 60 s")
    arguments.add_argument("--image", default="fleetune-mounted", help="what containers are made of")
    asked = arguments.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    report = Report("fleet", asked.quick)
    started_s = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - started_s:5.0f} s  {what}", file=sys.stderr, flush=True)

    settings = (QUICK,) if asked.quick else ALL
    listed = [f"{setting.name}/{strategy}" for setting in settings for strategy in setting.strategies]
    say(f"the list, {len(listed)} runs: {', '.join(listed)}")
    runs = []
    with tempfile.TemporaryDirectory(prefix="fleetune-fleet-") as folder:
        for setting in settings:
            runs += run_all(setting, asked.image, Path(folder) / setting.name, say)
    sheet = table(settings, runs)
    sheet.print(console())
    report.add(sheet.figures)
    report.print()
    return int(any(figure.value is None for figure in report.figures))


if __name__ == "__main__":
    sys.exit(main())
