"""A pipeline that computes nothing: its runs leave a fleet, handmade plans and handmade trainings in a real store."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import (
    DeviceAmount,
    EvaluationMetrics,
    Forecast,
    LinkBytes,
    RoundMetrics,
    Score,
    TrainingMetrics,
)
from fleetune.contracts.plan import Plan, PlanResult
from fleetune.contracts.run_config import RunConfig
from fleetune.errors import FleetuneError
from fleetune.store import RunRecord, StageRecord, Store
from flows.cli.work import Work
from flows.context import RunContext, StageSelection
from flows.tracking import StageEvent
from tests.support.clock import fleets

TIMES_S = {"single": 4.0, "dp": 2.0, "pp": 3.0}


def training(losses: list[float], round_s: float, plan_from_round: int = 0) -> TrainingMetrics:
    """A training of rounds that all take `round_s`; rounds before `plan_from_round` took a hundred times as long."""
    return TrainingMetrics(
        rounds=tuple(
            RoundMetrics(
                round=number,
                loss=loss,
                gradient_norm=None,
                learning_rate=0.1,
                round_s=round_s * (100 if number < plan_from_round else 1),
            )
            for number, loss in enumerate(losses)
        ),
        timeline=(),
        peak_memory_bytes=(DeviceAmount(device="a", amount=5e8),),
        busy_s=(),
        link_bytes=(LinkBytes(source="a", target="b", bytes=1100), LinkBytes(source="b", target="a", bytes=1100)),
        median_round_s=round_s,
        wall_s=1.0,
        plan_from_round=plan_from_round,
    )


class StandIn(Work):
    """Stands in for the pipeline; `errors` are raised by the runs of a strategy that reach that stage."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.asked: list[tuple[str, StageSelection, RunConfig]] = []
        self.errors: dict[tuple[str, str], FleetuneError] = {}
        self.before_it_begins: dict[str, FleetuneError] = {}
        self.plans: dict[str, Plan] = {}
        self.losses: dict[str, list[float]] = {}
        self.fleet = fleets.FLEET
        self.slower = 1.25
        """Measured seconds of a round, by its forecast."""

    def run_with(
        self, context: RunContext, config: RunConfig, selection: StageSelection, dry_run: bool = False
    ) -> RunRecord:
        """As flows.api.run_with."""
        name = config.strategy.name
        self.asked.append((name, selection, config))
        if name in self.before_it_begins and selection.until != "profile":
            raise self.before_it_begins[name]
        record = RunRecord(
            id=f"{config.name}-{len(self.asked)}",
            config=config,
            seed=0,
            code_version="1",
            started=f"2026-01-02T12:00:{len(self.asked):02}",
            stages=(),
        )
        context.listen(StageEvent(stage="run", kind="started", text=record.id))
        stages = {"profile": ("discover",), "plan": ("discover", "plan")}
        for stage in stages.get(selection.until or "", ("discover", "plan", "train", "evaluate")):
            error = self.errors.get((name, stage))
            if error is not None:
                self.store.runs.save(replace(record, state="failed", error=str(error)))
                raise error
            record = replace(record, stages=(*record.stages, self._stage(stage, config)))
        record = replace(record, state="done")
        self.store.runs.save(record)
        return record

    def _stage(self, stage: str, config: RunConfig) -> StageRecord:
        made: dict[str, dict[str, Any]] = {
            "discover": {"fleet": {"fleet.json": self.fleet}},
            "plan": {"plan": self._plan(config.strategy.name)},
            "train": {"metrics": {"training.json": self._training(config.strategy.name)}, "checkpoint": {"x": "{}"}},
            "evaluate": {"evaluation": {"evaluation.json": self._evaluation()}},
        }
        outputs = {kind: self.put(kind, files) for kind, files in made[stage].items()}
        return StageRecord(stage=stage, key="0" * 64, state="done", how="ran", outputs=outputs)

    def _plan(self, name: str) -> dict[str, Any]:
        plan = replace(self.plans.get(name, fleets.PLAN), strategy=name)
        round_s = TIMES_S.get(name, 1.0)
        found = PlanResult(
            plan=plan, objective=round_s, lower_bound=None, status="feasible", solve_s=0.0, method="by hand"
        )
        forecast = Forecast(
            round_s=round_s,
            rows=(),
            busy_s=(),
            memory_bytes=(DeviceAmount(device="a", amount=4e8), DeviceAmount(device="b", amount=9e8)),
            link_bytes=(LinkBytes(source="a", target="b", bytes=1000), LinkBytes(source="b", target="a", bytes=1000)),
        )
        return {"plan.json": found, "forecast.json": forecast}

    def _training(self, name: str) -> TrainingMetrics:
        return training(self.losses.get(name, [2.0, 1.0]), self.slower * TIMES_S.get(name, 1.0))

    def _evaluation(self) -> EvaluationMetrics:
        return EvaluationMetrics(
            scores=(Score(name="accuracy", before=0.1, after=0.7, better="higher"),),
            samples=10,
            forecast_round_s=1.0,
            measured_round_s=1.0,
            forecast_error=0.0,
            bytes_per_round=2200,
            peak_memory_bytes=(),
        )

    def put(self, kind: str, files: dict[str, Any]) -> str:
        """Store an artifact of these files, each a record or a text; its digest."""
        folder = Path(self.store.root).parent / f"making-{kind}"
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            text = content if isinstance(content, str) else json_io.text(content)
            (folder / name).write_text(text)
        return self.store.put(kind, folder, stage_key="0" * 64, inputs={})


def other_fleet() -> Fleet:
    """The fleet of the stand-in with faster links, as a second measurement may find it."""
    return replace(
        fleets.FLEET, links=tuple(replace(link, bytes_per_s=2 * link.bytes_per_s) for link in fleets.FLEET.links)
    )
