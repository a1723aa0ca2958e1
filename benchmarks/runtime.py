"""`python -m benchmarks.runtime [--quick]`: what it costs to train through the partitioned runtime.

A one-device plan beside a plain PyTorch loop, and on two threads beside itself on one; how busy a plan of two segments
keeps its devices beside what the clock says; copies and CPU time of sending tensors beside zmq and CURVE alone; and how
long a small message takes.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import transformers

from benchmarks.parts.bench_model import MODEL, SMALL, measured
from benchmarks.parts.copies import copies
from benchmarks.parts.one_device import one_device
from benchmarks.parts.two_segments import two_segments
from benchmarks.report import Figure, Report

EMULATED_CORES = 0.5


def run(folder: Path, quick: bool, say: Callable[[str], None]) -> list[Figure]:
    """Every figure; `folder` gets what is left behind."""
    say("sending tensors between two processes")
    found = copies(folder / "wire", repeats=2 if quick else 15)
    real = measured(folder / "real", SMALL if quick else MODEL, None, say)
    say("a one-device plan on one and on two threads, and a plain loop, in turns")
    found = [*one_device(real, rounds=2 if quick else 6, repeats=2 if quick else 5), *found]
    say("two segments on two processes")
    found += two_segments(real, rounds=4 if quick else 12, repeats=1 if quick else 4)
    if not quick:
        slow = measured(folder / "emulated", MODEL, EMULATED_CORES, say)
        say(f"two segments on two devices held at {EMULATED_CORES} cores")
        found += two_segments(slow, rounds=8, repeats=3, suffix="_emulated")
    return found


def main() -> int:
    """Measure, print, and say by the exit code that all was measured."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.runtime", description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="fewer repeats, within 60 s")
    quick = arguments.parse_args().quick
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers.utils.logging.disable_progress_bar()
    report = Report("runtime", quick)
    started_s = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - started_s:5.0f} s  {what}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="fleetune-bench-") as folder:
        report.add(run(Path(folder), quick, say))
    report.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
