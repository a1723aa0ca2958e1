"""One way to train, measured: peaks of memory and rounds beside their forecast; and what packing wastes."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.memory.cases import Case
from benchmarks.report import Figure, median_and_spread
from benchmarks.strategies.runs import WARM_UP_ROUNDS, run_file
from fleetune.contracts import json_io
from fleetune.contracts.metrics import Forecast, TrainingMetrics
from fleetune.data.sequences import packed_rows

MB = 1e6
SHEET = "memory and rounds of the demo's model; in brackets the spread of measured rounds and of devices' errors"
TARGET, WASTE_TARGET, CACHED_TARGET = 0.1, 0.05, 2.0
LENGTH = 512
PACKED = {"4,000 samples": 4000, "300 samples": 300}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Peaks and rounds of a run."""

    name: str
    forecast: Forecast
    peaks_bytes: dict[str, int]
    """Device -> most memory of its process."""
    rounds_s: tuple[float, ...]
    """Without the first WARM_UP_ROUNDS."""

    @property
    def forecast_peaks_bytes(self) -> dict[str, float]:
        """Device -> peak by forecast, of the devices that train."""
        return {each.device: each.amount for each in self.forecast.memory_bytes if each.device in self.peaks_bytes}


def measured(case: Case, root: Path, sets: Sequence[str]) -> Measured:
    """Run the demo in one way, up to training."""
    store, record = run_file("demo", root, [*case.sets, *sets], until="train")
    training = json_io.read(TrainingMetrics, store.folder("metrics", record.outputs["metrics"]) / "training.json")
    return Measured(
        name=case.name,
        forecast=json_io.read(Forecast, store.folder("plan", record.outputs["plan"]) / "forecast.json"),
        peaks_bytes={each.device: int(each.amount) for each in training.peak_memory_bytes},
        rounds_s=tuple(each.round_s for each in training.rounds[WARM_UP_ROUNDS:]),
    )


def case_figures(run: Measured, full: Measured) -> Iterator[Figure]:
    """Yield the figures of one way; peaks and rounds also as shares of those of full fine-tuning."""
    forecast_bytes, peaks_bytes = run.forecast_peaks_bytes, run.peaks_bytes
    errors = [forecast_bytes[device] / peak - 1 for device, peak in peaks_bytes.items()]
    round_s = median(run.rounds_s)

    def cell(name: str, column: str, unit: str, value: float, **more: Any) -> Figure:
        described: dict[str, Any] = {"better": "lower", "value": value, **more}
        return Figure(name=f"{run.name}_{name}", unit=unit, cell=(SHEET, run.name, column), **described)

    yield cell("peak", "peak of all MB", "MB", sum(peaks_bytes.values()) / MB)
    yield cell("fullest", "of the fullest", "MB", max(peaks_bytes.values()) / MB)
    yield cell("forecast_peak", "forecast of all", "MB", sum(forecast_bytes.values()) / MB)
    spread = (min(errors), max(errors))
    yield cell("peak_error", "largest error", "of measured", max(map(abs, errors)), target=TARGET, spread=spread)
    yield cell("peak_of_full", "of full", "of full", sum(peaks_bytes.values()) / sum(full.peaks_bytes.values()))
    yield cell("round", "round s", "s", round_s, spread=median_and_spread(run.rounds_s)["spread"])
    yield cell("forecast_round", "forecast s", "s", run.forecast.round_s)
    yield cell("round_of_full", "of full's", "of full", round_s / median(full.rounds_s))


def cached_figure(name: str, pairs: Sequence[tuple[Measured, Measured]]) -> Figure:
    """Return how much faster rounds, and so epochs, are where frozen units are not run again.

    pairs: trainings without and with stored activations, right after each other; the median of their ratios, which are
    of medians of rounds.
    """
    ratios = [median(without.rounds_s) / median(cached.rounds_s) for without, cached in pairs]
    return Figure(
        name=name,
        value=median(ratios),
        unit="x",
        better="higher",
        target=CACHED_TARGET,
        spread=(min(ratios), max(ratios)),
        about=f"a round of {pairs[0][0].name} over one with stored activations, {len(pairs)} times in turn",
    )


def packing_figures() -> Iterator[Figure]:
    """Yield the share of padding in packed sequences, of lengths that are spread as those of chats usually are."""
    for name, samples in PACKED.items():
        draw = random.Random(samples)
        lengths = [min(LENGTH, max(8, round(draw.lognormvariate(4.8, 0.8)))) for _ in range(samples)]
        rows = packed_rows(lengths, LENGTH)
        yield Figure(
            name=f"packing_waste_{samples}",
            value=1 - sum(lengths) / (len(rows) * LENGTH),
            unit="of tokens",
            better="lower",
            target=WASTE_TARGET,
            about=f"{name} of at most {LENGTH} tokens, packed",
        )
