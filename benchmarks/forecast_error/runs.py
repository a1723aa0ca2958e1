"""The complete list of runs (fleets, models, strategies), fixed before the first of them starts, and their execution.

A run is the pipeline of `fleetune run`, up to training; its result holds the forecast and the measured rounds.
"""

import json
import math
import os
import statistics
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from benchmarks import CONFIGS
from fleetune.clock import forecast
from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import Forecast, Interval, TrainingMetrics
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.contracts.run_config import RunConfig
from fleetune.errors import FleetuneError
from fleetune.store import RunRecord, Store
from flows import configs
from flows.context import RunContext, StageSelection
from flows.runner import Runner
from flows.tracking import StageEvent
from flows.without_prefect import run_without_prefect

STRATEGIES = ("search", "dp", "pp", "single")
"""Strategies by the names in the table; `search` is strategy asteroid with its default method."""

MOST_ROUNDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCase:
    """A fleet of containers with the model, data and training that run on it."""

    name: str
    about: str
    cores: tuple[float, ...]
    links: dict[str, Any]
    model: str
    data: str
    batch_samples: int
    micro_batch_samples: int
    rounds: int
    """At least."""
    least_s: float = 30.0
    """Seconds of training, by its forecast, up to MOST_ROUNDS rounds: the first rounds of a training, in which memory
    and caches are new, take some percent longer, and are not half of those that a user waits for."""
    strategies: tuple[str, ...] = STRATEGIES
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of strategies that need some."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices."""
        return tuple(f"{self.name}-{place}" for place in range(len(self.cores)))

    def lasting(self, round_s: float) -> "FleetCase":
        """Return the case with so many rounds of this duration that they are no shorter than `least_s`."""
        return replace(self, rounds=max(self.rounds, min(MOST_ROUNDS, math.ceil(self.least_s / round_s))))

    def config(self, strategy: str, image: str) -> dict[str, Any]:
        """The run file of one strategy on this fleet."""
        return {
            "name": f"{self.name}-{strategy}",
            "seed": 1,
            "fleet": {
                "image": image,
                "devices": [
                    {
                        "name": name,
                        "launcher": "docker",
                        "accelerator": "cpu",
                        "emulate": {"cores": cores, "memory_bytes": 2_000_000_000},
                    }
                    for name, cores in zip(self.devices, self.cores, strict=True)
                ],
                "links": self.links,
            },
            "model": self.model,
            "data": self.data,
            "strategy": {
                "name": "asteroid" if strategy == "search" else strategy,
                "options": dict(self.options.get(strategy, {})),
            },
            "profile": {"scores": strategy == "d2ft"},
            "training": {
                "rounds": self.rounds,
                "checkpoint_every_rounds": self.rounds,  # checkpoints are in no forecast
                "batch_samples": self.batch_samples,
                "micro_batch_samples": self.micro_batch_samples,
                "learning_rate": 5e-4,
            },
        }


EDGE = FleetCase(
    name="edge",
    about="0.6/0.4/0.3/0.3 cores, 50 and 100 Mbit/s, MiniLM (22 M parameters, all trained)",
    cores=(0.6, 0.4, 0.3, 0.3),
    links={
        "mbit_per_s": 50.0,
        "latency_s": 0.002,
        "pairs": [
            {"source": a, "target": b, "mbit_per_s": 100.0, "latency_s": 0.001}
            for a, b in (("edge-0", "edge-1"), ("edge-1", "edge-0"))
        ],
    },
    model="minilm",
    data="docstrings",
    batch_samples=32,
    micro_batch_samples=8,
    rounds=8,
)
TOWNS = FleetCase(
    name="towns",
    about="0.6/0.5/0.4 cores in three towns, 20 Mbit/s and 20 ms, MiniLM with LoRA",
    cores=(0.6, 0.5, 0.4),
    links={"mbit_per_s": 20.0, "latency_s": 0.02},
    model="minilm-lora",
    data="docstrings",
    batch_samples=32,
    micro_batch_samples=8,
    rounds=8,
)
HOME = FleetCase(
    name="home",
    about="0.9/0.5 cores, 200 Mbit/s, a vision transformer of 0.3 M parameters",
    cores=(0.9, 0.5),
    links={"mbit_per_s": 200.0, "latency_s": 0.0005},
    model="vit-tiny",
    data="digits",
    batch_samples=256,
    micro_batch_samples=64,
    rounds=60,
)
QUICK = replace(HOME, name="quick", rounds=10, least_s=0.0, strategies=("search", "single"))
FURTHER = (
    replace(
        TOWNS,
        name="cities",
        about="0.6/0.5/0.4 cores, 20 Mbit/s and 20 ms, MiniLM with LoRA, a tenth of the bytes by top-k",
        strategies=("fusionllm",),
        options={"fusionllm": {"compression_ratio": 10}},
    ),
    FleetCase(
        name="server",
        about="0.2 cores that collect, 0.6/0.4/0.3 that train a block each, 50 Mbit/s, MiniLM with LoRA",
        cores=(0.2, 0.6, 0.4, 0.3),
        links={"mbit_per_s": 50.0, "latency_s": 0.002},
        model="minilm-lora",
        data="docstrings",
        batch_samples=16,
        micro_batch_samples=8,
        rounds=8,
        strategies=("lola-deft",),
        options={"lola-deft": {"server": "server-0"}},
    ),
    replace(
        TOWNS,
        name="helped",
        about="0.6 cores that help two clients of 0.5 and 0.4 cores, 20 Mbit/s and 20 ms, MiniLM",
        model="minilm",
        batch_samples=16,
        rounds=24,
        strategies=("split-learning",),
        options={"split-learning": {"helpers": ["helped-0"], "average_every_rounds": 24}},
    ),
    replace(
        TOWNS,
        name="gated",
        about="0.6/0.5/0.4 cores, 20 Mbit/s and 20 ms, MiniLM, heads trained in 3 of 5 micro-batches",
        model="minilm",
        batch_samples=40,
        strategies=("d2ft",),
        options={"d2ft": {"full": 3, "forward_only": 1}},
    ),
)
"""One run of each further strategy."""
ALL = (EDGE, TOWNS, HOME, *FURTHER)


EVENTS = "events.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedRun:
    """One profile, plan and training, of which each belongs to this run alone."""

    fleet: str
    strategy: str
    forecast_s: float
    interval: Interval | None
    """The forecast's."""
    rounds_s: tuple[float, ...]
    """Duration of every round."""
    load: float
    """Load average of the machine over the minute before the training started."""
    ready_s: float
    """Seconds from the start of the training to the first message of its last worker; workers start concurrently."""
    workers: int
    forecast_period_s: float
    """From one commit to the next; 0 if unknown."""
    period_s: float
    """Median from one commit to the next."""
    later_forecast_s: float | None = None
    """Forecast of the same plan by a profile that was measured after its training; None: there was none."""

    @property
    def median_s(self) -> float:
        """The measured median round."""
        return statistics.median(self.rounds_s)

    @property
    def error(self) -> float:
        """Forecast error relative to the measured median round."""
        return self.forecast_s / self.median_s - 1

    @property
    def drift(self) -> float | None:
        """How much slower the devices are in the later profile than in the first one, by the forecasts of the plan."""
        return None if self.later_forecast_s is None else self.later_forecast_s / self.forecast_s - 1

    @property
    def error_without_drift(self) -> float | None:
        """Error of the mean of both forecasts: what a steady change of the machine's speed does not explain."""
        if self.later_forecast_s is None:
            return None
        return (self.forecast_s + self.later_forecast_s) / 2 / self.median_s - 1

    @property
    def period_error(self) -> float | None:
        """The same from commit to commit; None where that is not forecast."""
        return self.forecast_period_s / self.period_s - 1 if self.forecast_period_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """A run that ended with an error."""

    fleet: str
    strategy: str
    why: str


def run_all(
    case: FleetCase,
    image: str,
    folder: Path,
    report_progress: Callable[[str], None],
    *,
    repeats: int = 1,
    profiles_each: bool = True,
) -> list[CompletedRun | FailedRun]:
    """Runs every strategy of a case `repeats` times, in turns: none has the best minutes of the machine alone.

    The fleet is profiled before each training, as a user's first run does it, and once after the last; without
    `profiles_each` one profile serves all, and nobody knows how far the machine has drifted.
    """
    runner = CaseRunner(case, image, folder)
    results: list[CompletedRun | FailedRun] = []
    listed = [strategy for _ in range(repeats) for strategy in case.strategies]
    for place, strategy in enumerate(listed):
        report_progress(f"{case.name}: {strategy} ({place // len(case.strategies) + 1} of {repeats})")
        try:
            results.append(runner.completed(strategy))
        except FleetuneError as error:
            results.append(FailedRun(fleet=case.name, strategy=strategy, why=str(error)))
        if not profiles_each:
            continue
        following = listed[place + 1] if place + 1 < len(listed) else strategy
        with suppress(FleetuneError):  # a run that fails is named when its turn comes
            runner.profile(following)
            if isinstance(latest := results[-1], CompletedRun):
                results[-1] = replace(latest, later_forecast_s=runner.forecast_again_s())
                report_progress(f"  forecast {latest.forecast_s:.3f} s, measured {latest.median_s:.3f}")
    return results


class CaseRunner:
    """Runs the plans of one case in a store of its own."""

    def __init__(self, case: FleetCase, image: str, folder: Path) -> None:
        self._case, self._image, self._folder = case, image, folder
        self.store = Store(folder / "store")
        self._profiled: RunRecord | None = None
        self._trained: RunRecord | None = None
        (folder / "runs").mkdir(parents=True)
        for kind in ("models", "data"):
            (folder / kind).symlink_to(CONFIGS / kind)

    def profile(self, strategy: str) -> None:
        """Measure fleet and model, anew if they were."""
        again = "profile" if self._profiled is not None else None
        self._profiled = self._run(strategy, StageSelection(from_stage=again, until="profile"))

    def planned(self, strategy: str) -> RunRecord:
        """Plan by the newest profile."""
        if self._profiled is None:
            self.profile(strategy)
        return self._run(strategy, StageSelection(from_stage="plan", until="plan"))

    def completed(self, strategy: str) -> CompletedRun:
        """Plan by the newest profile and train."""
        loads: list[float] = []
        foreseen = self._forecast(self.planned(strategy))
        case = self._case.lasting(foreseen.round_s)
        self._trained = self._run(strategy, StageSelection(from_stage="train", until="train"), loads, case)
        return _read(self.store, self._trained, (self._case.name, strategy), foreseen, loads[0])

    def forecast_again_s(self) -> float:
        """Return the round of the plan that was trained last, by the newest profile."""
        assert self._trained is not None, "a plan is trained before it is forecast again"
        return self._forecast(self._trained).round_s

    def _forecast(self, planned: RunRecord) -> Forecast:
        """Return the forecast of a run's plan by the newest profile; a plan that is stored keeps its first one."""
        fleet, profile, result = self.artifacts(planned)
        return forecast(result.plan, fleet, profile)

    def artifacts(self, planned: RunRecord) -> tuple[Fleet, Profile, PlanResult]:
        """Return the newest fleet and profile, and a run's plan."""
        assert self._profiled is not None, "a fleet is profiled before a plan is made"
        outputs = self._profiled.outputs
        return (
            json_io.read(Fleet, self.store.folder("fleet", outputs["fleet"]) / "fleet.json"),
            json_io.read(Profile, self.store.folder("profile", outputs["profile"]) / "profile.json"),
            json_io.read(PlanResult, self.store.folder("plan", planned.outputs["plan"]) / "plan.json"),
        )

    def _run(
        self,
        strategy: str,
        selection: StageSelection,
        loads: list[float] | None = None,
        case: FleetCase | None = None,
    ) -> RunRecord:
        """Run stages; appends the load at the start of a training to `loads`. case: with other rounds."""

        def listen(event: StageEvent) -> None:
            if loads is not None and event.stage == "train" and event.kind == "started":
                loads.append(os.getloadavg()[0])

        config = self.config(strategy, case or self._case)
        return run_without_prefect(Runner(RunContext(store=self.store, listen=listen), config, selection))

    def config(self, strategy: str, case: FleetCase) -> RunConfig:
        """Write the run file of a strategy, and read it as a user's."""
        path = self._folder / "runs" / f"{case.name}-{strategy}.yaml"
        path.write_text(yaml.safe_dump(case.config(strategy, self._image)), encoding="utf-8")
        return configs.load(path)


def _read(store: Store, record: RunRecord, names: tuple[str, str], foreseen: Forecast, load: float) -> CompletedRun:
    metrics = store.folder("metrics", record.outputs["metrics"])
    events = [json.loads(line) for line in (metrics / EVENTS).read_text(encoding="utf-8").splitlines()]
    joined = [event["at_s"] for event in events if event["event"] == "joined"]
    commits = [event["at_s"] for event in events if event["event"] == "committed"]
    return CompletedRun(
        fleet=names[0],
        strategy=names[1],
        forecast_s=foreseen.round_s,
        interval=foreseen.interval,
        rounds_s=tuple(each.round_s for each in json_io.read(TrainingMetrics, metrics / "training.json").rounds),
        load=load,
        ready_s=max(joined) - events[0]["at_s"],
        workers=len(joined),
        forecast_period_s=foreseen.period_s,
        period_s=statistics.median(after - before for before, after in pairwise(commits)),
    )
