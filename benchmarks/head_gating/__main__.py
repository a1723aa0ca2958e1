"""`python -m benchmarks.head_gating [--quick]`: seconds of transformer blocks whose heads are gated (D2FT).

Every head is full in 3 of 5 micro-batches, which are drawn for each head by itself, and skipped in the others; or it
runs forward only in one of those. The time of a round's forwards and backwards is divided by that of the same blocks
without gates. They take turns on one thread; times are CPU time of the thread, so that other programs disturb them
less.
"""

import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.entry_point import measure_and_print
from benchmarks.head_gating.blocks import MIXES, Blocks, Workload, gpt2_small, vit_small
from benchmarks.report import Figure

PAPERS_MIX = next(iter(MIXES))
TARGET = 0.72
"""A subnet that processes 3 micro-batches instead of 5, in Table IV of the paper: 2.27 ms of 3.16 ms."""


def measure(workload: Workload, folder: Path, repeats: int, suffix: str) -> list[Figure]:
    """Return the figures of one workload."""
    blocks = Blocks(workload, folder)
    whole = blocks.segment({})
    gated = {name: blocks.segment(blocks.gates(mix, seed=1)) for name, mix in MIXES.items()}
    whole_flops = blocks.flops(whole)
    ideal = {name: blocks.flops(segment) / whole_flops for name, segment in gated.items()}
    ratios: dict[str, list[float]] = {name: [] for name in gated}
    seconds: list[float] = []
    for _ in range(repeats):
        seconds.append(blocks.round_s(whole))
        for name, segment in gated.items():
            ratios[name].append(blocks.round_s(segment) / seconds[-1])
    common: dict[str, Any] = {"unit": "x", "better": "lower"}
    about = f"{workload.samples} samples a micro-batch, {min(seconds):.2f} s in full"
    found: list[Figure] = []
    for name, values in ratios.items():
        figure = f"{workload.name}_{suffix}_{name}"
        target = TARGET if name == PAPERS_MIX else None
        value, spread = statistics.median(values), (min(values), max(values))
        found += [
            Figure(name=f"{figure}_time_ratio", value=value, target=target, spread=spread, about=about, **common),
            Figure(name=f"{figure}_flops_ratio", value=ideal[name], about="what the time could be", **common),
        ]
    return found


def run(folder: Path, quick: bool, report_progress: Callable[[str], None]) -> list[Figure]:
    """Return all figures; weights are written to `folder`."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    found: list[Figure] = []
    for make, samples in ((vit_small, 16), (gpt2_small, 4)):
        for lora in (False, True):
            suffix = "lora" if lora else "full_fine_tuning"
            workload = make(4 if quick else samples, lora)
            if quick and workload.name == "gpt2_small":
                if lora:
                    continue
                workload = make(1, lora)
            report_progress(f"{workload.name}, {suffix}")
            found += measure(workload, folder, repeats=3 if quick else 7, suffix=suffix)
    return found


if __name__ == "__main__":
    sys.exit(measure_and_print("head_gating", __doc__, "fewer repeats, samples and workloads, within 60 s", run))
