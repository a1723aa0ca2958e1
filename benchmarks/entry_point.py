"""The command line of benchmarks that measure in a scratch folder, in full or with --quick."""

import argparse
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.report import Figure, Report, progress_printer

Measure = Callable[[Path, bool, Callable[[str], None]], Iterable[Figure]]
"""(scratch folder, whether --quick was given, a listener to progress) -> figures."""


def measure_and_print(bench: str, about: str, quick_help: str, measure: Measure) -> int:
    """Measure and print; returns the exit code."""
    arguments = argparse.ArgumentParser(prog=f"python -m benchmarks.{bench}", description=about)
    arguments.add_argument("--quick", action="store_true", help=quick_help)
    quick = arguments.parse_args().quick
    report = Report(bench, quick)
    with tempfile.TemporaryDirectory(prefix="fleetune-bench-") as folder:
        report.add(measure(Path(folder), quick, progress_printer()))
    report.print()
    return 0
