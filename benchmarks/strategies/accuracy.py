"""Scores of every strategy beside those of one device: with the run file's own batch, and with as many samples a round
as all lanes together."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from benchmarks import CONFIGS
from benchmarks.report import Figure
from benchmarks.strategies.runs import STRATEGIES, evaluation, run_file
from fleetune.contracts import json_io
from fleetune.contracts.plan import FULL, Plan, PlanResult
from flows import configs
from flows.comparison.mean_rounds import mean_samples

TARGET = 0.02
SHEET = "accuracy on docstrings set aside"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Accuracy before and after training, and the samples of a round."""

    before: float
    after: float
    round_samples: int
    """Of all lanes."""
    batch_samples: int
    """Of the run file, and so of each lane."""
    subset_samples: int = 0
    """Of the micro-batches in which gates train a head on the mean; 0 without gates."""


def accuracy(name: str, root: Path, *sets: str) -> Accuracy:
    """Run a run file to its end."""
    store, record = run_file(name, root, sets)
    plan = json_io.read(PlanResult, store.folder("plan", record.outputs["plan"]) / "plan.json").plan
    score = next(each for each in evaluation(store, record).scores if each.name == "accuracy")
    return Accuracy(
        before=score.before,
        after=score.after,
        round_samples=round(mean_samples(plan)),
        batch_samples=plan.batch_samples,
        subset_samples=_subset_samples(plan),
    )


def _subset_samples(plan: Plan) -> int:
    """Samples of as many micro-batches as gates train each head in; 0 for a plan without gates."""
    trained = [gate.operations.count(FULL) for gate in plan.gates]
    return round(mean(trained)) * plan.micro_batch_samples if trained else 0


def accuracy_figures(
    root: Path, seeds: tuple[int, ...], rounds: int | None, report_progress: Callable[[str], None]
) -> Iterator[Figure]:
    """Yield the accuracy of each strategy, of one device, and what the strategy loses: the mean over seeds.

    rounds: of each training; None: as many as the run file says.
    """
    length = () if rounds is None else (f"training.rounds={rounds}",)
    for name in STRATEGIES:
        found: list[Compared] = []
        for seed in seeds:
            report_progress(f"{name}, seed {seed}")
            ours = accuracy(name, root, f"seed={seed}", *length)

            def single(samples: int, seed: int = seed, name: str = name) -> Accuracy:
                report_progress(f"{name}, seed {seed}: one device, {samples} samples a round")
                return accuracy(name, root, f"seed={seed}", *length, *single_sets(name, samples))

            alone = single(ours.batch_samples)
            same = ours.round_samples == ours.batch_samples
            subset = single(ours.subset_samples) if ours.subset_samples else None
            found.append(Compared(ours, alone, alone if same else single(ours.round_samples), subset))
        yield from compared(name, found)


def single_sets(name: str, round_samples: int) -> tuple[str, ...]:
    """Changes that train the model of a run file on one device of this machine, with as many samples a round."""
    size = configs.load(CONFIGS / "runs" / f"{name}.yaml").training.micro_batch_samples
    batch = (f"training.batch_samples={round_samples}", f"training.micro_batch_samples={size}")
    one_thread = "fleet.devices.here.threads=1"  # on a busy machine fewer are faster
    return ("fleet=here", one_thread, "strategy=single", "profile.scores=false", *batch)


class Compared(NamedTuple):
    """A strategy, and the same model on one device."""

    ours: Accuracy
    alone: Accuracy
    """With the run file's batch."""
    as_many: Accuracy
    """With as many samples a round as all lanes together: batches are larger by the number of lanes."""
    subset: Accuracy | None = None
    """With so few samples a round as gates train each head on; None without gates."""


def compared(name: str, found: list[Compared]) -> Iterator[Figure]:
    """Yield the means over seeds of the strategy and one device."""
    columns = {
        "before": [each.ours.before for each in found],
        "after": [each.ours.after for each in found],
        "one device": [each.alone.after for each in found],
        "lost": [each.alone.after - each.ours.after for each in found],
        "one device, as many samples": [each.as_many.after for each in found],
    }
    if subsets := [each.subset.after for each in found if each.subset]:
        columns["one device, subset"] = subsets
    for column, values in columns.items():
        yield Figure(
            name=f"{name}_accuracy_{column.replace(', ', '_').replace(' ', '_')}",
            value=sum(values) / len(values),
            unit="",
            target=TARGET if column == "lost" else None,
            better="lower" if column == "lost" else "higher",
            spread=(min(values), max(values)),
            cell=(SHEET, name, column),
        )
