"""`python -m benchmarks.codecs [--quick]`: bytes, time and error of every link codec, on one core.

Encodes and decodes Gaussian tensors in turns with copies of them, and reports the error of these and of an activation
of MiniLM-L6 on docstrings, whose largest element is about 16 times its root mean square.
"""

import argparse
import os
import sys
from collections.abc import Callable

import torch
import transformers

from benchmarks.codecs.activations import recorded_activation
from benchmarks.codecs.errors import errors
from benchmarks.codecs.speed import speeds
from benchmarks.report import Figure, Report, progress_printer


def run(quick: bool, report_progress: Callable[[str], None]) -> list[Figure]:
    """All figures of the benchmark."""
    torch.set_num_threads(1)
    report_progress("every codec in turns with copies")
    figures = speeds(rounds=20 if quick else 200)
    report_progress("errors of Gaussian data and of a recorded activation")
    return [*figures, *errors(recorded_activation(samples=16 if quick else 64))]


def main() -> int:
    """Measure and print; returns the exit code."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.codecs", description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="fewer repeats, within 60 s")
    quick = arguments.parse_args().quick
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers.utils.logging.disable_progress_bar()
    report = Report("codecs", quick)
    report.add(run(quick, progress_printer()))
    report.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
