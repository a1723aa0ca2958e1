"""The pipeline for notebooks and scripts, without Prefect: `fleetune.plan(...)` and `fleetune.train(...)`.

Runs lie in the same store as those of the command line and of the UI, by the same keys: what one has made, the others
reuse. Stages are processes of their own, so that a cell may be interrupted and run again.
"""

import functools
import sys
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetune.contracts import json_io
from fleetune.contracts.metrics import EvaluationMetrics, Forecast, TrainingMetrics
from fleetune.contracts.plan import PlanResult
from fleetune.errors import Refused
from fleetune.formatting import seconds, visible
from fleetune.store import RunRecord, Store
from flows import preflight
from flows.context import RunContext
from flows.form import RunRequest, config_of, selection_of
from flows.preflight import predict_run
from flows.runner import Runner
from flows.store_root import store_root
from flows.trackers.tracking import Tracking
from flows.tracking import StageEvent, reason
from flows.without_prefect import run_without_prefect

if TYPE_CHECKING:
    import pandas as pd

TOLD = ("reused", "done", "note")
"""Kinds of events that are printed."""


class FinishedRun:
    """A run as a notebook shows it; its tables are pandas data frames."""

    def __init__(self, record: RunRecord, store: Store) -> None:
        self.record, self._store = record, store

    @property
    def id(self) -> str:
        """Its name in the store: `fleetune show ID`."""
        return self.record.id

    @functools.cached_property
    def plan(self) -> PlanResult:
        """Which device runs what, on how many samples."""
        return json_io.read(PlanResult, self._file("plan", "plan.json"))

    @functools.cached_property
    def forecast(self) -> Forecast:
        """The forecast round: seconds, timeline, memory and bytes."""
        return json_io.read(Forecast, self._file("plan", "forecast.json"))

    @property
    def losses(self) -> "pd.DataFrame":
        """A row for each round: loss, learning_rate, round_s."""
        import pandas as pd

        rounds = json_io.read(TrainingMetrics, self._file("metrics", "training.json")).rounds
        columns = ("loss", "learning_rate", "round_s")
        index = pd.Index([each.round for each in rounds], name="round")
        return pd.DataFrame({name: [getattr(each, name) for each in rounds] for name in columns}, index=index)

    @property
    def scores(self) -> "pd.DataFrame":
        """A row for each score on held-out samples: before, after, better (higher or lower)."""
        import pandas as pd

        found = json_io.read(EvaluationMetrics, self._file("evaluation", "evaluation.json")).scores
        index = pd.Index([each.name for each in found], name="score")
        columns = ("before", "after", "better")
        return pd.DataFrame({name: [getattr(each, name) for each in found] for name in columns}, index=index)

    @property
    def model(self) -> Path:
        """The trained model: a Hugging Face folder, or a PEFT adapter."""
        checkpoint = self._file("checkpoint", ".")
        return next(checkpoint / name for name in ("model", "adapter") if (checkpoint / name).is_dir())

    @property
    def report(self) -> Path:
        """The report of the run, or of its plan, as an HTML file."""
        kind = "evaluation" if "evaluation" in self.record.outputs else "plan"
        return self._file(kind, "report.html")

    def export(self, folder: str | Path, merge: bool = False) -> Path:
        """Write the model with a card into a new folder, as `fleetune export` does."""
        from flows.hand_over.export import export
        from flows.hand_over.trained_run import trained_run

        return export(trained_run(self._store, self.id), Path(folder), merge)

    def predict(self, texts: str | Path | Iterable[str | Path], new_tokens: int = 64) -> "pd.DataFrame":
        """Ask the trained model: a row for each text (or path of an image), as `fleetune predict` has them."""
        import pandas as pd

        from flows.hand_over.predict import Asked, predict
        from flows.hand_over.trained_run import trained_run

        given = [texts] if isinstance(texts, str | Path) else texts
        asked = Asked(texts=[str(one) if isinstance(one, Path) else one for one in given], new_tokens=new_tokens)
        return pd.DataFrame([json_io.dump(one) for one in predict(trained_run(self._store, self.id), asked)])

    def __repr__(self) -> str:
        said = f"{self.id}: {self.plan.plan.strategy}, a round takes {seconds(self.forecast.round_s)} by the forecast"
        return said + (f"\n{self.scores}\nmodel {self.model}" if "evaluation" in self.record.outputs else "")

    def _repr_html_(self) -> str:
        from fleetune.drawing.gantt import gantt

        scores = self.scores.to_html() if "evaluation" in self.record.outputs else ""
        return f"<p>{escape(repr(self).splitlines()[0])}</p>{scores}{gantt(self.forecast.rows, 'Forecast round')}"

    def _file(self, kind: str, name: str) -> Path:
        if kind not in self.record.outputs:
            raise Refused(f"run {self.id} has no {kind}: it ended after {self.record.stages[-1].stage}; train it")
        return self._store.folder(kind, self.record.outputs[kind]) / name


def plan(base: str | Path, *, root: str | Path | None = None, **changes: Any) -> FinishedRun:
    """Measure the devices, profile the model and solve the plan of a run file; nothing is trained.

    base: a run file, its name in configs/runs, or a past run. changes: those of the form: strategy, fleet, model, data
    (names of files in configs/), rounds, learning_rate, force, and changes: KEY=VALUE each. Errors are FleetuneErrors,
    whose message is a sentence.
    """
    return _run(base, root, {"until": "plan", **changes})


def train(base: str | Path, *, root: str | Path | None = None, **changes: Any) -> FinishedRun:
    """Run the whole pipeline of a run file, with changes as `plan` takes them; what has not changed is reused."""
    return _run(base, root, changes)


def _run(base: str | Path, root: str | Path | None, changes: dict[str, Any]) -> FinishedRun:
    unknown = sorted(set(changes) - set(RunRequest.__dataclass_fields__) - {"base", "dry_run"})
    if unknown or "dry_run" in changes:
        known = ", ".join(name for name in RunRequest.__dataclass_fields__ if name not in ("base", "dry_run"))
        raise Refused(f"{(unknown or ['dry_run'])[0]}: no such change; allowed are {known}")
    if isinstance(changes.get("changes"), str):
        changes = {**changes, "changes": (changes["changes"],)}
    request = RunRequest(base=str(base), **{name: _plain(value) for name, value in changes.items()})
    store = Store(store_root() if root is None else str(root))
    config, past = config_of(request, store)
    runner = Runner(RunContext(store=store, listen=_tell), config, selection_of(request, past))
    preflight.validate(predict_run(runner))
    with Tracking(runner):
        record = run_without_prefect(runner)
    return FinishedRun(record, store)


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _tell(event: StageEvent) -> None:
    if event.kind in TOLD:
        why = visible(reason(event.text))
        sys.stdout.write(f"{event.stage:9} {event.kind}{' - ' if why else ''}{why}\n")
        sys.stdout.flush()
