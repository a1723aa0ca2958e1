"""`python -m benchmarks.pipeline [--quick]`: what the pipeline costs besides the work of its stages.

Starts a service of an empty store, runs the stages up to `plan` on simulated devices, runs them again, and submits a
run that is refused. Also measures the commands `--help` and `runs`, and how fast a run is verified.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.entry_point import measure_and_print
from benchmarks.pipeline.commands import help_time, runs_time, verify_speed
from benchmarks.pipeline.flow_runs import flow_run_figures
from benchmarks.report import Figure

MIB = 1 << 20
RUNS = 1000


def run(folder: Path, quick: bool, report_progress: Callable[[str], None]) -> list[Figure]:
    """All figures of the benchmark; stores are made in `folder`."""
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        del os.environ[name]  # settings of the machine reach no service
    repeats = 3 if quick else 9
    report_progress("commands")
    found = [help_time(repeats), runs_time(folder / "many", RUNS, repeats)]
    report_progress("hashing the files of an artifact")
    found.append(verify_speed(folder / "large", (256 if quick else 2048) * MIB, repeats))
    return [*flow_run_figures(folder / "runs", 1 if quick else 3, report_progress), *found]


if __name__ == "__main__":
    sys.exit(measure_and_print("pipeline", __doc__, "fewer repeats, within 60 s", run))
