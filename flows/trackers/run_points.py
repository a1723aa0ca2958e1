"""The points of a run: read from the work folder of `train` while it trains, from artifacts afterwards."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import EvaluationMetrics, RoundMetrics, RoundScores, TrainingMetrics
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.data.prepared_data import PreparedData
from fleetune.store import RunRecord, StageRecord, Store
from flows.run_pages.run_content import COMMITS
from flows.trackers.commit_times import CommitTimes
from flows.trackers.growing_file import GrowingFile
from flows.trackers.points import Point
from flows.trackers.round_sizes import RoundSizes
from flows.trackers.utilization import round_at_peak_s
from stages.catalog import EVALUATE, TRAIN

EVENTS, SCORES = "events.jsonl", "scores.jsonl"
_Measured = tuple[RoundMetrics, float, float | None]
"""A round, when it was committed in seconds since 1970, and seconds from the commit before it; None if unknown."""


class _Source:
    """The folder that rounds are read from."""

    def __init__(self, folder: Path, trained: TrainingMetrics | None) -> None:
        """trained: the metrics in the folder, if it is that artifact; None for a work folder."""
        self.folder, self.trained = folder, trained
        self.times = CommitTimes(folder / EVENTS)
        self.rounds: Sequence[RoundMetrics] = trained.rounds if trained else ()
        self.scores: Sequence[RoundScores] = trained.scores if trained else ()
        self._commits, self._scores = GrowingFile(folder / COMMITS), GrowingFile(folder / SCORES)

    def read(self) -> None:
        """Read what is new."""
        if self.trained is None:
            other, lines = self._commits.read()
            fresh = [json_io.parse(RoundMetrics, line, COMMITS) for line in lines]
            self.rounds = fresh if other else [*self.rounds, *fresh]
            other, lines = self._scores.read()
            scored = [json_io.parse(RoundScores, line, SCORES) for line in lines]
            self.scores = scored if other else [*self.scores, *scored]
        self.times.read()


class RunPoints:
    """Reads the points of one run again and again while it grows."""

    def __init__(self, store: Store, record: Callable[[], RunRecord]) -> None:
        """record: returns the run's record as it is now."""
        self._store, self._record = store, record
        self._source: _Source | None = None
        self._sizes: RoundSizes | None = None
        self._scored_split = "test"
        self._at_peak_s: float | None = None
        self._made: dict[int, tuple[_Measured, Point]] = {}
        """Round -> its point, and what that was made of."""
        self._scored: dict[int, int] = {}
        """Rounds of scored states -> number of points before those of the scores, which come later than the round."""

    def read(self, over: bool) -> list[Point]:
        """Return all points of the run, those of each name in the order of their steps: TensorBoard's default loader
        forgets all that it has read of a name when an earlier step follows.

        over: whether the run has ended. Before, a round whose commit is not in the event log yet is left out.
        """
        run = self._record()
        train = _stage(run, TRAIN.name)
        if train is None or not (train.key or train.outputs):
            return []
        source = self._source_of(train)
        began_s = _seconds(train.started or run.started)
        points = self._of_rounds(run, source, began_s, over)
        if source.trained is None:
            return points
        before, after = self._of_evaluation(run, source.trained, began_s)
        return [*before, *points, *_of_training(source.trained, _seconds(train.ended or run.started)), *after]

    def _source_of(self, train: StageRecord) -> "_Source":
        metrics = train.outputs.get("metrics")
        folder = self._store.folder("metrics", metrics) if metrics else self._store.local / "work" / train.key
        if self._source is None or self._source.folder != folder:
            trained = json_io.read(TrainingMetrics, folder / "training.json") if metrics else None
            self._source = _Source(folder, trained)
        return self._source

    def _of_rounds(self, run: RunRecord, source: "_Source", started_s: float, over: bool) -> list[Point]:
        source.read()
        times, rounds = source.times, list(source.rounds)
        while rounds and source.trained is None and not over and rounds[-1].round not in times.at_s:
            rounds.pop()
        if rounds and self._sizes is None:
            self._look_up(run)
        found = []
        for one in rounds:
            measured = (one, times.at_s.get(one.round, started_s), times.took_s.get(one.round))
            known = self._made.get(one.round)
            if known is None or known[0] != measured:
                known = self._made[one.round] = (measured, self._point(measured, times.resumed_from))
            found.append(known[1])
        return self._with_scores(found, source.scores, started_s)

    def _with_scores(self, rounds: list[Point], scores: Sequence[RoundScores], started_s: float) -> list[Point]:
        """Add the points of scores where they were first seen, so that points that were told stay where they are."""
        places: dict[int, list[Point]] = {}
        for each in scores:
            place = min(len(rounds), self._scored.setdefault(each.rounds, max(each.rounds, len(rounds))))
            at_s = rounds[place - 1].at_s if place else started_s
            values = {f"{self._scored_split}/{name}": value for name, value in each.values.items()}
            places.setdefault(place, []).append(Point(step=each.rounds, at_s=at_s, values=values))
        found = list(places.get(0, []))
        for number, point in enumerate(rounds, start=1):
            found += [point, *places.get(number, [])]
        return found

    def _point(self, measured: _Measured, resumed_from: int | None) -> Point:
        """Return the point of a round; rates are those from one commit to the next."""
        one, at_s, took_s = measured
        values = {"train/loss": one.loss, "train/learning_rate": one.learning_rate, "train/round_s": one.round_s}
        if one.gradient_norm is not None:
            values["train/gradient_norm"] = one.gradient_norm
        if one.loss_scale is not None:
            values["train/loss_scale"] = one.loss_scale
        sizes = self._sizes
        if sizes is not None and one.energy_j is not None and sizes.known(one.round, resumed_from):
            values["train/joules_per_sample"] = one.energy_j / sizes.samples(one.resting)
        if sizes is not None and took_s is not None and sizes.known(one.round, resumed_from):
            values["train/samples_per_s"] = sizes.samples(one.resting) / took_s
            tokens = sizes.tokens(one.round)
            if tokens is not None:
                values["train/tokens_per_s"] = tokens / took_s
            if self._at_peak_s is not None and (resumed_from is None or one.round < resumed_from):
                values["train/mfu"] = self._at_peak_s / took_s
        return Point(step=one.round, at_s=at_s, values=values)

    def _look_up(self, run: RunRecord) -> None:
        """Read what rates are computed by: the plan, its data, and the peaks of its devices."""
        folders = {kind: self._store.folder(kind, run.outputs[kind]) for kind in ("plan", "data", "fleet", "profile")}
        plan = json_io.read(PlanResult, folders["plan"] / "plan.json").plan
        self._sizes = RoundSizes(plan, folders["data"], run.seed)
        self._scored_split = PreparedData(folders["data"]).scored_while_training
        fleet = json_io.read(Fleet, folders["fleet"] / "fleet.json")
        profile = json_io.read(Profile, folders["profile"] / "profile.json")
        model = run.config.model
        self._at_peak_s = round_at_peak_s(fleet, profile, plan, model.mixed_precision or model.precision)

    def _of_evaluation(
        self, run: RunRecord, trained: TrainingMetrics, began_s: float
    ) -> tuple[list[Point], list[Point]]:
        """Return the points of the scores before and after training, as far as no others say them."""
        stage = _stage(run, EVALUATE.name)
        digest = stage.outputs.get("evaluation") if stage else None
        if stage is None or digest is None:
            return [], []
        found = json_io.read(EvaluationMetrics, self._store.folder("evaluation", digest) / "evaluation.json")
        at_s = _seconds(stage.ended or run.started)
        before = {f"test/{score.name}": score.before for score in found.scores}
        after = {f"test/{score.name}": score.after for score in found.scores}
        rounds = trained.result_rounds or len(trained.rounds)
        known = {each.rounds for each in trained.scores if self._scored_split == "test"}
        return (
            [] if 0 in known else [Point(step=0, at_s=began_s, values=before)],
            [] if rounds in known else [Point(step=rounds, at_s=at_s, values=after)],
        )


def _of_training(trained: TrainingMetrics, at_s: float) -> list[Point]:
    peaks = {f"memory_peak_bytes/{each.device}": each.amount for each in trained.peak_memory_bytes}
    return [Point(step=len(trained.rounds), at_s=at_s, values=peaks)]


def _stage(run: RunRecord, name: str) -> StageRecord | None:
    return next((stage for stage in run.stages if stage.stage == name), None)


def _seconds(moment: str) -> float:
    """Return the seconds since 1970 of a time in ISO 8601."""
    return datetime.fromisoformat(moment).timestamp()
