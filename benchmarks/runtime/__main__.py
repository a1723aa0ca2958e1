"""`python -m benchmarks.runtime [--quick]`: cost of training through the partitioned runtime.

Compares a one-device plan with a plain PyTorch loop, and the same plan on two threads with one; the busy share of two
devices in a plan of two segments with the forecast's; memory copies and CPU time of sending tensors with zmq and CURVE
alone. Also measures the round trip of a small message.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import transformers

from benchmarks.entry_point import measure_and_print
from benchmarks.report import Figure
from benchmarks.runtime.one_device import one_device
from benchmarks.runtime.transfers import transfer_costs
from benchmarks.runtime.two_segments import two_segments
from benchmarks.runtime.workload import MODEL, SMALL, prepare_workload

EMULATED_CORES = 0.5


def run(folder: Path, quick: bool, report_progress: Callable[[str], None]) -> list[Figure]:
    """All figures of the benchmark; `folder` receives logs, profiles and checkpoints."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers.utils.logging.disable_progress_bar()
    report_progress("sending tensors between two processes")
    found = transfer_costs(folder / "wire", repeats=2 if quick else 15)
    real = prepare_workload(folder / "real", SMALL if quick else MODEL, None, report_progress)
    report_progress("a one-device plan on one and on two threads, and a plain loop, in turns")
    found = [*one_device(real, rounds=2 if quick else 6, repeats=2 if quick else 5), *found]
    report_progress("two segments on two processes")
    found += two_segments(real, rounds=4 if quick else 12, repeats=1 if quick else 4)
    if not quick:
        slow = prepare_workload(folder / "emulated", MODEL, EMULATED_CORES, report_progress)
        report_progress(f"two segments on two devices held at {EMULATED_CORES} cores")
        found += two_segments(slow, rounds=8, repeats=3, suffix="_emulated")
    return found


if __name__ == "__main__":
    sys.exit(measure_and_print("runtime", __doc__, "fewer repeats, within 60 s", run))
