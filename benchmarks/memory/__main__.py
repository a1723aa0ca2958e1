"""`python -m benchmarks.memory [--quick]`: peak memory and round of ways to train, each beside its forecast.

Trains the demo's model on its three emulated devices, as `fleetune run` does it, in each of the ways of `cases.py`.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import transformers

from benchmarks.entry_point import measure_and_print
from benchmarks.memory.cases import CACHED, FULL, LAST_THIRD, LORA, ways
from benchmarks.memory.measured import Measured, cached_figure, case_figures, measured, packing_figures
from benchmarks.report import Figure

QUICK_SETS = ("training.rounds=6", "training.checkpoint_every_rounds=6", "model.config.num_hidden_layers=2")
SETS = ("training.rounds=12", "training.checkpoint_every_rounds=12")
TURNS = (12, 13, 14)
ALONE = ("fleet=here", "fleet.devices.here.threads=1", "strategy=single")


def measure(folder: Path, quick: bool, report_progress: Callable[[str], None]) -> Iterator[Figure]:
    """Yield the figures of every way, and of packing."""
    found: dict[str, Measured] = {}
    for case in (FULL, LORA) if quick else ways():
        report_progress(f"{case.name}: profile, plan, train")
        found[case.name] = measured(case, folder / "store", QUICK_SETS if quick else SETS)
        yield from case_figures(found[case.name], found[FULL.name])
    if CACHED.name in found:
        for name, sets in (("three_devices", ()), ("one_device", ALONE)):
            report_progress(f"{name}, without and with stored activations in turn")
            yield cached_figure(f"cached_speedup_on_{name}", in_turn(folder / "store", sets))
    yield from packing_figures()


def in_turn(root: Path, sets: tuple[str, ...]) -> list[tuple[Measured, Measured]]:
    """Train without and with stored activations, one after the other, and again: what a machine does in minutes then
    changes both. Each time is of a length of its own, or its results would be taken from the store.
    """
    lengths = [(f"training.rounds={rounds}", f"training.checkpoint_every_rounds={rounds}") for rounds in TURNS]
    return [
        (measured(LAST_THIRD, root, (*sets, *length)), measured(CACHED, root, (*sets, *length))) for length in lengths
    ]


def main() -> int:
    """Measure and print."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers.utils.logging.disable_progress_bar()
    return measure_and_print("memory", str(__doc__), "full fine-tuning and LoRA on two layers, within 60 s", measure)


if __name__ == "__main__":
    sys.exit(main())
