"""`python -m benchmarks.gates [--quick]`: seconds of transformer blocks whose heads are gated (D2FT).

Every head is full in 3, forward only in 1 and skipped in 1 of 5 micro-batches, drawn for each head by itself. The time
of a round's forwards and backwards is divided by that of the same blocks without gates. The two take turns on one
thread; times are CPU time of the thread, so that other programs disturb them less.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from benchmarks.gates.blocks import Blocks, Workload, gpt2_small, vit_small
from benchmarks.report import Figure, Report, progress_printer

TARGET = 0.72
"""Time of a block at 60 % of its full operations in Table IV of the paper: 2.27 of 3.16."""


def measure(workload: Workload, folder: Path, repeats: int, suffix: str) -> list[Figure]:
    """Return the figures of one workload."""
    blocks = Blocks(workload, folder)
    whole, gated = blocks.segment({}), blocks.segment(blocks.gates(seed=1))
    ideal = blocks.flops(gated) / blocks.flops(whole)
    ratios: list[float] = []
    seconds: list[float] = []
    for _ in range(repeats):
        full_s = blocks.round_s(whole)
        ratios.append(blocks.round_s(gated) / full_s)
        seconds.append(full_s)
    name = f"{workload.name}_{suffix}"
    return [
        Figure(
            name=f"{name}_time_ratio",
            value=sorted(ratios)[len(ratios) // 2],
            unit="x",
            target=TARGET,
            better="lower",
            spread=(min(ratios), max(ratios)),
            about=f"{workload.samples} samples a micro-batch, {min(seconds):.2f} s in full",
        ),
        Figure(name=f"{name}_flops_ratio", value=ideal, unit="x", better="lower", about="what the time could be"),
    ]


def run(folder: Path, quick: bool, report_progress: Callable[[str], None]) -> list[Figure]:
    """Return all figures; weights are written to `folder`."""
    found: list[Figure] = []
    for make, samples in ((vit_small, 16), (gpt2_small, 4)):
        for lora in (False, True):
            suffix = "lora" if lora else "full_fine_tuning"
            workload = make(4 if quick else samples, lora)
            if quick and workload.name == "gpt2_small":
                workload = make(1, lora)
            report_progress(f"{workload.name}, {suffix}")
            found += measure(workload, folder, repeats=3 if quick else 7, suffix=suffix)
    return found


def main() -> int:
    """Measure and print; returns the exit code."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.gates", description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="fewer repeats and samples, within 60 s")
    quick = arguments.parse_args().quick
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    report = Report("gates", quick)
    with tempfile.TemporaryDirectory(prefix="fleetune-bench-") as folder:
        report.add(run(Path(folder), quick, progress_printer()))
    report.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
