"""Runs several strategies one after the other on one measured fleet, and gathers their figures.

First the fleet is measured and the model profiled, in a run of its own. Then every strategy is planned in a run that
takes this fleet from the store, and, if asked, those whose plans can be trained are trained. A strategy that fails
keeps its reason, and the next one is run.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from fleetune import planning
from fleetune.contracts.record import distinct, not_negative, record
from fleetune.contracts.run_config import RunConfig
from fleetune.errors import FleetuneError, Infeasible, Refused, TryAgain
from fleetune.formatting import seconds
from fleetune.store import RunRecord
from fleetune.store.runs import COMPARISON, new_run_id
from flows import api
from flows.comparison import archive
from flows.comparison.figures import common_loss, load_fleet, planned_row, trained_row, with_target
from flows.comparison.pages import reasons, verdict
from flows.comparison.record import FAILED, INFEASIBLE, PLANNED, REFUSED, ComparedStrategy, Comparison
from flows.context import RunContext, StageSelection
from flows.form import AS_GIVEN, RunRequest, config_of, names_in
from flows.tracking import StageEvent

HELD = ("discover",)
"""Stages whose result every strategy takes from the store, so that all are planned on one fleet."""
SCORES = "profile.scores=true"


def ignore(comparison: Comparison) -> None:
    """The default receiver of a comparison."""


Result = TypeVar("Result")


@record
class StepEnd:
    """How a step of a comparison ended."""

    state: str
    """One of record.STATES, or empty."""
    why: str


class Steps:
    """Runs the steps of a comparison; a subclass shows them."""

    def run(self, name: str, work: Callable[[], Result], end: Callable[[Result], StepEnd]) -> Result:
        """The result of `work`; `end` says what it came to. Raises the error of the step."""
        return work()


DIRECTLY = Steps()


@record
class CompareRequest:
    """The values of the form of `compare`; neutral values change nothing."""

    base: str
    strategies: tuple[str, ...]
    """Names of files in configs/strategies."""
    fleet: str = AS_GIVEN
    model: str = AS_GIVEN
    data: str = AS_GIVEN
    rounds: int = 0
    target_loss: float = 0.0
    """0: the lowest loss that every trained strategy reached."""
    changes: tuple[str, ...] = ()
    train: bool = False

    def validate(self) -> None:
        """Refuse unknown and repeated strategies, and changes that would make all of them the same."""
        known = names_in("strategies")
        if not self.strategies:
            raise Refused(f"strategies: none is given; allowed are {', '.join(known)}")
        for name in self.strategies:
            if name not in known:
                raise Refused(f"strategies: {name!r} is not known; allowed are {', '.join(known)}")
        distinct("strategies", "strategy", self.strategies)
        not_negative("compare", target_loss=self.target_loss, rounds=self.rounds)
        for change in self.changes:
            if change.partition("=")[0].partition(".")[0].strip() == "strategy":
                raise Refused(f"changes: {change!r} would change every strategy alike; name them in strategies instead")

    def run_of(self, strategy: str) -> RunRequest:
        """The run of one strategy."""
        return RunRequest(
            base=self.base,
            strategy=strategy,
            fleet=self.fleet,
            model=self.model,
            data=self.data,
            rounds=self.rounds,
            changes=self.changes,
        )


@record
class _Attempt:
    """A run that has ended, or the error that it ended with before or after it had begun."""

    run: RunRecord | None = None
    error: FleetuneError | None = None


def _with_all_times(plainest: RunConfig, configs: Sequence[RunConfig]) -> RunConfig:
    """Return the config that measures for all: the plainest one with what any of them needs to be timed.

    They find these times in the cache of measurements, which serve those that need less, too.
    """
    profiles = [one.profile for one in configs]
    codecs, parts = any(one.codecs for one in profiles), any(one.partial for one in profiles)
    return replace(plainest, profile=replace(plainest.profile, codecs=codecs, partial=parts))


class Comparer:
    """One comparison; every config is proven before anything runs."""

    def __init__(self, context: RunContext, request: CompareRequest, run_with: api.RunWith = api.run_with) -> None:
        """Refused: a strategy, base, section or change that cannot be, or training on simulated devices.

        run_with: runs each config.
        """
        request.validate()
        self._context, self._request, self._run_with = context, request, run_with
        self._configs = {name: self._config(name) for name in request.strategies}
        first = next(iter(self._configs.values()))
        self._plainest = next((one for one in self._configs.values() if not one.profile.scores), first)
        self._measuring = _with_all_times(self._plainest, list(self._configs.values()))
        if request.train and first.fleet.simulated:
            raise Refused(
                f"train: device {first.fleet.simulated[0]} is simulated, so nothing can be trained on it; compare "
                "without train, or choose another fleet"
            )
        self._id = new_run_id(f"{first.name}-compare", context.store.clock(), context.token_hex)
        self._rows: dict[str, ComparedStrategy] = {}
        self._fleet: RunRecord | None = None

    @property
    def simulated(self) -> bool:
        """True for a simulated fleet, on which nothing can be trained."""
        return bool(self._measuring.fleet.simulated)

    @property
    def title(self) -> str:
        """`demo · compare asteroid, single`."""
        return f"{self._measuring.name} · compare {', '.join(self._configs)}"

    def compare(self, publish: Callable[[Comparison], None] = ignore, steps: Steps = DIRECTLY) -> Comparison:
        """Run everything; the comparison is stored, and published, whenever a part of it is complete.

        There is one step for the fleet, one for each strategy's plan and one for its training, and one for each table.

        Raises the error of measuring the fleet, and, where no strategy has a plan, one that gives every reason.
        """
        self._fleet = steps.run("fleet", self._measure, lambda run: StepEnd(state="", why=f"measured in run {run.id}"))
        for name in self._configs:
            row = steps.run(f"plan {name}", partial(self._plan, name), _row_end)
            self._rows[name] = replace(row, same_as=self._twin(row))
        found = steps.run("forecasts", partial(self._publish, publish), _table_end)
        if not found.by_forecast:
            raise _no_plan(found.strategies)
        trained = [
            row for row in self._rows.values() if row.state == PLANNED and not row.untrainable and not row.same_as
        ]
        if not self._request.train or not trained:
            return found
        for row in trained:
            done = steps.run(f"train {row.name}", partial(self._train, row.name, row), _row_end)
            same = [other.name for other in self._rows.values() if other.same_as == row.name]
            self._rows |= {row.name: done, **{name: replace(done, name=name, same_as=row.name) for name in same}}
            found = self._publish(publish)
        return steps.run("measurements", lambda: found, _table_end)

    def _config(self, name: str) -> RunConfig:
        """The config of one strategy; heads are scored for those that select by scores.

        It promotes nothing, and starts from the model of the run file: all strategies must start alike.
        """
        asked, store = self._request.run_of(name), self._context.store
        config, _ = config_of(asked, store)
        if getattr(planning.strategies()[config.strategy.name], "needs_scores", False) and not config.profile.scores:
            config, _ = config_of(replace(asked, changes=(*asked.changes, SCORES)), store)
        return replace(config, promote=None)

    def _measure(self) -> RunRecord:
        """Measure the fleet and profile the model, in a run that ends there."""
        self._say("measuring the fleet and the model for all strategies")
        done = self._run(self._measuring, StageSelection(until="profile", beside=COMPARISON))
        if isinstance(done.error, Refused) and self._measuring != self._plainest:  # what one needs may not be had
            done = self._run(self._plainest, StageSelection(until="profile", beside=COMPARISON))
        if done.error is not None or done.run is None:
            raise done.error or TryAgain("the run that measures the fleet has left no record; run it again")
        return done.run

    def _plan(self, name: str) -> ComparedStrategy:
        self._say(f"planning {name}")
        done = self._run(self._configs[name], StageSelection(until="plan", kept=HELD, beside=COMPARISON))
        if done.error is not None or done.run is None:
            return _failed(ComparedStrategy(name=name, state=FAILED), done)
        other = self._other_fleet(done.run)
        if other:
            return ComparedStrategy(name=name, state=FAILED, run=done.run.id, why=other)
        try:
            return planned_row(self._context.store, name, done.run)
        except Refused as error:
            return ComparedStrategy(name=name, state=FAILED, run=done.run.id, why=str(error))

    def _twin(self, row: ComparedStrategy) -> str:
        """Name of the first strategy that has the same plan; empty if none has."""
        same = (
            other.name for other in self._rows.values() if row.plan and other.plan == row.plan and not other.same_as
        )
        return next(same, "")

    def _train(self, name: str, planned: ComparedStrategy) -> ComparedStrategy:
        self._say(f"training {name}")
        done = self._run(self._configs[name], StageSelection(kept=HELD, beside=COMPARISON))
        if done.error is not None or done.run is None:
            return _failed(planned, done)
        other = self._other_fleet(done.run)
        if other:
            return replace(planned, state=FAILED, run=done.run.id, why=other)
        try:
            return trained_row(self._context.store, planned, done.run)
        except Refused as error:
            return replace(planned, state=FAILED, run=done.run.id, why=str(error))

    def _run(self, config: RunConfig, selection: StageSelection) -> _Attempt:
        """Run to the end, whatever it is; an interruption ends the comparison too."""
        begun: list[str] = []

        def listen(event: StageEvent) -> None:
            if event.stage == "run" and event.kind == "started":
                begun.append(event.text)
            self._context.listen(event)

        try:
            return _Attempt(run=self._run_with(replace(self._context, listen=listen), config, selection))
        except FleetuneError as error:
            record = self._context.store.runs.load(begun[-1]) if begun else None
            return _Attempt(run=record, error=error)

    def _other_fleet(self, run: RunRecord) -> str:
        """A sentence when another run has measured the fleet again meanwhile; empty for the same fleet."""
        assert self._fleet is not None
        if run.outputs.get("fleet") == self._fleet.outputs["fleet"]:
            return ""
        return "another run has measured the fleet again meanwhile, so it is not comparable; run the comparison again"

    def _publish(self, publish: Callable[[Comparison], None]) -> Comparison:
        found = self._snapshot()
        archive.keep(self._context.store, found)
        publish(found)
        return found

    def _snapshot(self) -> Comparison:
        """The comparison as far as it has come."""
        assert self._fleet is not None
        trained = [row for row in self._rows.values() if row.measured]
        target = self._request.target_loss or common_loss([row.losses for row in trained])
        rows = tuple(self._rows.values())
        return Comparison(
            id=self._id,
            name=self._measuring.name,
            model=self._measuring.model.source or str((self._measuring.model.config or {}).get("model_type")),
            started=self._fleet.started,
            rounds=self._measuring.training.rounds,
            devices=load_fleet(self._context.store, self._fleet),
            measured_by=self._fleet.id,
            fleet=self._fleet.outputs["fleet"],
            strategies=rows if target is None else tuple(with_target(row, target) for row in rows),
            target_loss=target if trained else None,
        )

    def _say(self, text: str) -> None:
        self._context.listen(StageEvent(stage="run", kind="note", text=text))


def _row_end(row: ComparedStrategy) -> StepEnd:
    """What a strategy came to: the time of its round, or its reason."""
    figures, how = (row.measured, "measured") if row.measured else (row.forecast, "by the clock")
    return StepEnd(state=row.state, why=row.why or (f"{seconds(figures.round_s)} a round, {how}" if figures else ""))


def _table_end(found: Comparison) -> StepEnd:
    return StepEnd(state="", why=verdict(found))


def _failed(row: ComparedStrategy, done: _Attempt) -> ComparedStrategy:
    """The row with the reason of a failed run."""
    states: dict[type[FleetuneError] | type[None], str] = {Infeasible: INFEASIBLE, Refused: REFUSED}
    said = str(done.error or "its run has left no record")
    run = done.run.id if done.run else row.run
    return replace(row, state=states.get(type(done.error), FAILED), why=said, run=run)


def _no_plan(rows: Sequence[ComparedStrategy]) -> FleetuneError:
    """The error of a comparison without a plan: a retry helps where a strategy failed, else it is infeasible or
    refused."""
    kinds: dict[str, type[FleetuneError]] = {FAILED: TryAgain, INFEASIBLE: Infeasible, REFUSED: Refused}
    kind = next(error for state, error in kinds.items() if any(row.state == state for row in rows))
    return kind("no strategy has a plan: " + "; ".join(reasons(rows)))
