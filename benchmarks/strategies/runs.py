"""The run files of the strategies, run by the pipeline, and what their artifacts say."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks import CONFIGS
from fleetune.contracts import json_io
from fleetune.contracts.metrics import EvaluationMetrics, Forecast, TrainingMetrics
from fleetune.contracts.plan import PlanResult
from fleetune.store import RunRecord, Store
from flows import configs
from flows.comparison.mean_rounds import average_share_s, mean_samples
from flows.context import RunContext, StageSelection
from flows.runner import Runner
from flows.without_prefect import run_without_prefect

STRATEGIES = ("fusionllm", "split-learning", "lola-deft", "d2ft")
"""Strategies with a run file of their own name in configs/runs."""
WARM_UP_ROUNDS = 2
COMMITTED = "committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What the rounds of a run took, beside their forecast."""

    strategy: str
    plan: PlanResult
    forecast: Forecast
    rounds_s: tuple[float, ...]
    """Seconds of each round after the first WARM_UP_ROUNDS."""
    between_commits_s: float
    """Median seconds from one commit to the next: a round with its commit and optimizer step, without an average."""
    average_share_s: float = 0.0
    """Seconds of an average over lanes, divided by the rounds between two of them."""
    sent_bytes: int
    """Bytes of all links in a round, measured."""

    @property
    def samples_per_s(self) -> float:
        """Samples per second over many rounds, of all lanes."""
        return mean_samples(self.plan.plan) / (self.between_commits_s + self.average_share_s)

    @property
    def error(self) -> float:
        """Forecast error relative to the measured median round."""
        return self.forecast.round_s / median(self.rounds_s) - 1


def run_file(name: str, root: Path, sets: Sequence[str], until: str | None = None) -> tuple[Store, RunRecord]:
    """Run a file of configs/runs with changes, as `fleetune run` does; returns the store and the run's record."""
    store = Store(root)
    config = configs.load(CONFIGS / "runs" / f"{name}.yaml", list(sets))
    runner = Runner(RunContext(store=store, listen=lambda event: None), config, StageSelection(until=until))
    return store, run_without_prefect(runner)


def trained(name: str, root: Path, sets: Sequence[str], report_progress: Callable[[str], None]) -> Trained:
    """Run the run file of a strategy up to training, and read its forecast and its rounds."""
    report_progress(f"{name}: discover, profile, plan, train")
    store, record = run_file(name, root, sets, until="train")
    metrics = store.folder("metrics", record.outputs["metrics"])
    training = json_io.read(TrainingMetrics, metrics / "training.json")
    events = [json.loads(line) for line in (metrics / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    commits = [event["at_s"] for event in events if event["event"] == COMMITTED][WARM_UP_ROUNDS:]
    planned = store.folder("plan", record.outputs["plan"])
    plan = json_io.read(PlanResult, planned / "plan.json")
    forecast = json_io.read(Forecast, planned / "forecast.json")
    return Trained(
        strategy=name,
        plan=plan,
        forecast=forecast,
        rounds_s=tuple(each.round_s for each in training.rounds[WARM_UP_ROUNDS:]),
        between_commits_s=median(after - before for before, after in pairwise(commits)),
        average_share_s=average_share_s(plan.plan, training, forecast),
        sent_bytes=sum(link.bytes for link in training.link_bytes),
    )


def evaluation(store: Store, record: RunRecord) -> EvaluationMetrics:
    """Return the scores of a run before and after training."""
    folder = store.folder("evaluation", record.outputs["evaluation"])
    return json_io.read(EvaluationMetrics, folder / "evaluation.json")
