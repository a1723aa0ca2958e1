"""Scores of every strategy beside those of one device that trains the same number of samples in the same rounds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import CONFIGS
from benchmarks.report import Figure
from benchmarks.strategies.runs import STRATEGIES, evaluation, run_file
from fleetune.contracts import json_io
from fleetune.contracts.plan import PlanResult
from flows import configs

TARGET = 0.02
SHEET = "accuracy on docstrings that nobody trained on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Accuracy before and after training, and the samples of a round."""

    before: float
    after: float
    round_samples: int


def accuracy(name: str, root: Path, *sets: str) -> Accuracy:
    """Run a run file to its end."""
    store, record = run_file(name, root, sets)
    plan = json_io.read(PlanResult, store.folder("plan", record.outputs["plan"]) / "plan.json").plan
    score = next(each for each in evaluation(store, record).scores if each.name == "accuracy")
    return Accuracy(before=score.before, after=score.after, round_samples=plan.batch_samples * len(plan.lanes))


def accuracy_figures(
    root: Path, seeds: tuple[int, ...], rounds: int | None, report_progress: Callable[[str], None]
) -> Iterator[Figure]:
    """Yield the accuracy of each strategy, of one device, and what the strategy loses: the mean over seeds.

    rounds: of each training; None: as many as the run file says.
    """
    length = () if rounds is None else (f"training.rounds={rounds}",)
    for name in STRATEGIES:
        found: list[tuple[Accuracy, Accuracy]] = []
        for seed in seeds:
            report_progress(f"{name}, seed {seed}")
            ours = accuracy(name, root, f"seed={seed}", *length)
            report_progress(f"{name}, seed {seed}: one device, {ours.round_samples} samples a round")
            sets = (*length, *single_sets(name, ours.round_samples))
            found.append((ours, accuracy(name, root, f"seed={seed}", *sets)))
        yield from compared(name, found)


def single_sets(name: str, round_samples: int) -> tuple[str, ...]:
    """Changes that train the model of a run file on one device of this machine, with as many samples a round."""
    size = configs.load(CONFIGS / "runs" / f"{name}.yaml").training.micro_batch_samples
    batch = (f"training.batch_samples={round_samples}", f"training.micro_batch_samples={size}")
    one_thread = "fleet.devices.here.threads=1"  # on a busy machine fewer are faster
    return ("fleet=here", one_thread, "strategy=single", "profile.scores=false", *batch)


def compared(name: str, found: list[tuple[Accuracy, Accuracy]]) -> Iterator[Figure]:
    """Yield the means over pairs of the strategy and one device."""
    columns = {
        "before": [ours.before for ours, _ in found],
        "after": [ours.after for ours, _ in found],
        "one device": [single.after for _, single in found],
        "lost": [single.after - ours.after for ours, single in found],
    }
    for column, values in columns.items():
        yield Figure(
            name=f"{name}_accuracy_{column.replace(' ', '_')}",
            value=sum(values) / len(values),
            unit="",
            target=TARGET if column == "lost" else None,
            better="lower" if column == "lost" else "higher",
            spread=(min(values), max(values)),
            cell=(SHEET, name, column),
        )
