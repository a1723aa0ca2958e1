"""`python -m benchmarks.strategies [--quick | --accuracy]`: the run files of the strategies on processes.

Each is discovered, profiled, planned and trained as `fleetune run` does it; its forecast round stands beside the
measured ones. Besides: bytes that LoLa-DEFT's backward saves, the time of gated blocks, costs of codecs, and a chain's
round beside the code from before programs of steps. `--accuracy` trains each run file to its end instead, and compares
its scores with those of one device; it may run on a busy machine.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import transformers

from benchmarks.codecs.speed import speeds
from benchmarks.head_gating.__main__ import measure as gate_figures
from benchmarks.head_gating.blocks import vit_small
from benchmarks.report import Figure, Report, progress_printer
from benchmarks.strategies.accuracy import accuracy_figures
from benchmarks.strategies.chain import chain_figures
from benchmarks.strategies.rounds import round_figures
from benchmarks.strategies.runs import STRATEGIES, trained
from benchmarks.strategies.saved_bytes import saved_bytes_figures

QUICK_STRATEGIES = ("split-learning",)
"""The one with lanes, a helper and averages."""
QUICK_SETS = (
    "training.rounds=7",
    "training.checkpoint_every_rounds=7",
    "model.config.num_hidden_layers=2",
    "data.train_samples=512",
)
SETS = ("training.rounds=14", "training.checkpoint_every_rounds=14")
"""Checkpoints lie between commits, and no forecast has them."""
CHAIN_BLOCKS = 6
"""Blocks of rounds of the chain: its ratio is then known to half a percent."""
CODEC_FIGURES = ("unstated_bytes", "throughput", "cost_at_8_mbit")


def run(folder: Path, quick: bool, report_progress: Callable[[str], None]) -> list[Figure]:
    """Return all figures but those of accuracy."""
    found: list[Figure] = []
    for name in QUICK_STRATEGIES if quick else STRATEGIES:
        sets = QUICK_SETS if quick else SETS
        found += round_figures(trained(name, folder / "store", sets, report_progress))
    report_progress("bytes that autograd saves, by the depth of the trained block")
    found += saved_bytes_figures(folder, quick)
    torch.set_num_threads(1)
    report_progress("gated blocks")
    found += [
        replace(figure, name=f"d2ft_{figure.name}")
        for figure in gate_figures(vit_small(2 if quick else 16, lora=False), folder, 3 if quick else 7, "blocks")
    ]
    report_progress("codecs")
    found += [figure for figure in speeds(rounds=2 if quick else 100) if figure.name.endswith(CODEC_FIGURES)]
    if not quick:
        found += chain_figures(folder / "chain", CHAIN_BLOCKS, report_progress)
    return found


def main() -> int:
    """Measure and print; returns 1 if a figure has no value."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.strategies", description=__doc__)
    either = arguments.add_mutually_exclusive_group()
    either.add_argument("--quick", action="store_true", help="one strategy on two layers, within 60 s")
    either.add_argument("--accuracy", action="store_true", help="scores beside those of one device, and nothing else")
    arguments.add_argument("--seeds", type=int, default=1, help="number of seeds of --accuracy")
    arguments.add_argument("--rounds", type=int, help="rounds of each training of --accuracy; the run file's")
    given = arguments.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers.utils.logging.disable_progress_bar()
    report = Report("strategies", given.quick)
    with tempfile.TemporaryDirectory(prefix="fleetune-bench-") as scratch:
        if given.accuracy:
            seeds = tuple(range(1, 1 + given.seeds))
            report.add(accuracy_figures(Path(scratch) / "store", seeds, given.rounds, progress_printer()))
        else:
            report.add(run(Path(scratch), given.quick, progress_printer()))
    report.print()
    return int(any(figure.value is None for figure in report.figures))


if __name__ == "__main__":
    sys.exit(main())
