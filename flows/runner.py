"""Conducts the stages of one run: reuse by key or run, store what was made, keep run.json true at every moment.

Knows nothing of Prefect. `stage(name)` may be called from several threads, for stages that run beside each other.
"""

import dataclasses
import threading
import time
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

from fleetune import disk
from fleetune.contracts import wire
from fleetune.contracts.config.run import RunConfig
from fleetune.contracts.fleet import DOCKER
from fleetune.contracts.record import record
from fleetune.contracts.task import RunFacts, StageTask
from fleetune.errors import FleetuneError, Refused, TryAgain
from fleetune.launching import Job, open_stages
from fleetune.store import KeyRecord, RunRecord, StageRecord
from fleetune.store.runs import new_run_id
from flows import attempt, yaml_file
from flows.beside import Leaders
from flows.decide import Decision, Judge
from flows.events import StageEvent
from flows.offline import offline
from flows.predecessors import leave_ingredients, predecessors
from flows.setting import Setting, Wish, version_of
from stages.catalog import StageEntry, config_slice, entry

GRACE_S = 5.0


@record
class Outcome:
    """How a stage ended."""

    stage: str
    how: str
    """ran, reused or stopped"""
    why: str
    outputs: dict[str, str]


class Runner:
    """One run, from its first stage to its last."""

    def __init__(self, setting: Setting, config: RunConfig, wish: Wish) -> None:
        """Refused when the wish or the config cannot be met; nothing is written yet."""
        self.setting = setting
        self.config = config = setting.pin(config)
        self.judge = Judge(setting, config, wish)
        self.rows = self.judge.rows()
        moment, commit = setting.store.clock(), setting.commit()
        self.record = RunRecord(
            id=new_run_id(config.name, moment, setting.chance),
            config=config,
            seed=config.seed,
            code_version=version_of("fleetune"),
            commit=commit.id,
            dirty=commit.dirty,
            started=moment.isoformat(),
            stages=tuple(StageRecord(stage=row.name) for row in self.rows),
        )
        self.error: FleetuneError | None = None
        self._leaders = Leaders(self.rows)
        self._plain = wire.dump(config)
        self._facts = RunFacts(
            name=config.name,
            started=self.record.started,
            code_version=self.record.code_version,
            commit=self.record.commit,
            dirty=self.record.dirty,
            settings=yaml_file.text(self._plain),
        )
        self._from_stage = wish.from_stage
        self._change = threading.Lock()
        self._stop = threading.Event()
        self._jobs: dict[str, Job] = {}
        self._verified: set[tuple[str, str]] = set()
        self._open = ExitStack()
        self._folders = disk.folders(setting.store.local)
        self._containers = open_stages(lambda text: None)

    def __enter__(self) -> "Runner":
        self._open.enter_context(self.setting.store.runs.alive(self.record.id))
        self._open.enter_context(self._containers)
        self.setting.store.tidy()
        self.setting.store.runs.save(self.record)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        """Whatever happened: no process is left and run.json says how it ended."""
        self.stop()
        interrupted = error is not None and not isinstance(error, Exception)
        failure = error if isinstance(error, FleetuneError) else self.error
        state = "interrupted" if interrupted else "failed" if error or failure else "done"
        with self._open, suppress(OSError) if error or failure else nullcontext():  # a full disk takes no record
            self._update(
                state=state,
                ended=self._now(),
                error=str(failure or ""),
                exit_code=failure.exit_code if failure else 0,
            )

    def stop(self) -> None:
        """End every process of this run; safe to repeat and from any thread."""
        self._stop.set()
        for job in list(self._jobs.values()):
            job.stop(GRACE_S)

    def stage(self, name: str) -> Outcome:
        """Reuse or run one stage whose inputs are there; raises the error it ended with."""
        row = entry(self.rows, name)
        begun = time.monotonic()
        try:
            outcome = self._stage(row)
        except BaseException as raised:
            error = raised if isinstance(raised, FleetuneError) else disk.in_words(raised, self._folders) or raised
            self._leaders.ended(name, ok=False)
            self._fail(row, error, time.monotonic() - begun)
            raise error from raised.__cause__
        self._leaders.ended(name, ok=True)
        self._tell(name, "done" if outcome.how == "ran" else outcome.how, outcome.why, time.monotonic() - begun)
        return outcome

    def _stage(self, row: StageEntry) -> Outcome:
        live = bool(row.beside) and self._leaders.wait_begun(row.beside)
        leader = self.record.stage(row.beside) if row.beside else None
        if leader and not live and leader.state != "done":
            return self._stopped(row)
        known = self._known(row)
        store = self.setting.store

        def decide() -> Decision:
            return self.judge.decide(row, {} if leader else known, self.record.id, leader.key if leader else "")

        with store.lock(decide().key, self._stop.wait, lambda: self._tell(row.name, "note", "waits for another run")):
            decision = dataclasses.replace(decide(), inputs=known)  # anew: the other run may have made it
            self._note(row, key=decision.key, inputs=known, why=decision.why, started=self._now())
            if not decision.runs:
                bad = self._bad(row, decision)
                if not bad:
                    return self._reused(row, decision)
                decision = dataclasses.replace(decision, runs=True, why=f"ran: {bad}")
                self._note(row, why=decision.why)
            return self._follow(row, decision) if live else self._run(row, decision)

    def _bad(self, row: StageEntry, decision: Decision) -> str:
        """What is wrong with the artifacts that would be reused; Refused where the stage is not to run."""
        for kind, digest in (decision.stored or {}).items():
            try:
                self._prove(kind, digest)
            except Refused as error:
                if self.judge.must_be_stored(row):
                    raise
                return self.setting.store.first_bad(kind, digest) or str(error)
        return ""

    def _reused(self, row: StageEntry, decision: Decision) -> Outcome:
        assert decision.stored is not None
        self._note(row, state="done", how="reused", outputs=decision.stored, ended=self._now())
        self._leaders.begun(row.name, live=False)
        return Outcome(stage=row.name, how="reused", why=decision.why, outputs=decision.stored)

    def _stopped(self, row: StageEntry) -> Outcome:
        why = f"stopped: {row.beside} did not end well"
        self._note(row, state="stopped", why=why, ended=self._now())
        return Outcome(stage=row.name, how="stopped", why=why, outputs={})

    def _follow(self, row: StageEntry, decision: Decision) -> Outcome:
        """Run beside a stage that is running, then keep what the stage makes of what that has stored.

        What is kept must not depend on when it looked: the same stored inputs give the same outputs in every run.
        """
        work = self.setting.store.work(self.record.stage(row.beside).key)
        try:
            self._attempt(row, decision, {kind: work for kind in row.inputs})
        except FleetuneError as error:
            self._tell(row.name, "note", f"could not follow {row.beside} to its end ({error})")
        if not self._leaders.wait_ended(row.beside):
            return self._stopped(row)
        whole = dataclasses.replace(decision, inputs=self._known(row))
        self._note(row, inputs=whole.inputs)
        return self._run(row, whole)

    def _run(self, row: StageEntry, decision: Decision) -> Outcome:
        for kind, digest in decision.inputs.items():
            self._prove(kind, digest)
        store = self.setting.store
        folders = {kind: store.folder(kind, digest) for kind, digest in decision.inputs.items()}
        with predecessors(store, row, decision.key, decision.ingredients) as earlier:
            outcome = self._keep(row, decision, self._attempt(row, decision, folders, earlier))
            for key in earlier:
                store.drop_work(key)
        return outcome

    def _attempt(
        self, row: StageEntry, decision: Decision, folders: dict[str, Path], earlier: tuple[str, ...] = ()
    ) -> StageTask:
        work = self.setting.store.work(decision.key)
        leave_ingredients(work, decision.ingredients)
        task = StageTask(
            stage=row.name,
            run=self.record.id,
            seed=self.config.seed,
            config=config_slice(row, self._plain),
            inputs={kind: str(folder.resolve()) for kind, folder in folders.items()},
            output=str((work / attempt.OUTPUT).resolve()),
            work=str(work.resolve()),
            earlier=tuple(str(self.setting.store.work(key).resolve()) for key in earlier),
            cache=str(self.setting.store.cache(row.name).resolve()),
            stored=self._stored(row, decision),
            anew=row.name == self._from_stage,
            facts=self._facts,
        )
        if self.record.stage(row.name).state != "running":  # a follower is attempted twice
            self._note(row, state="running", how="ran")
            self._tell(row.name, "started", decision.why)
        job = self._start(row, task)
        self._jobs[row.name] = job
        try:
            if self._stop.is_set():
                raise TryAgain(f"stage {row.name} was stopped with its run; run it again to go on")
            self._leaders.begun(row.name, live=True)
            if row.beside:
                self._leaders.end_with(row.beside, job)
            attempt.listen_to_end(row, job, self.setting.listen, lambda text: self._resumed(row, text))
        finally:
            job.stop(GRACE_S)
        return task

    def _start(self, row: StageEntry, task: StageTask) -> Job:
        """In a container where the config asks for that and the stage conducts no devices."""
        stages = self.config.stages
        if stages.launcher != DOCKER or not row.image:
            return attempt.start(row, task, self.setting.launcher)
        place = self._containers.launcher(stages.image or row.image)
        task, reads = offline(row, task, self.config.model)
        return attempt.start(row, task, place, reads)

    def _keep(self, row: StageEntry, decision: Decision, task: StageTask) -> Outcome:
        """Put what a stage made into the store, then its key."""
        store, why, outputs = self.setting.store, self.record.stage(row.name).why, {}
        for kind, folder in attempt.outputs_of(row, task).items():
            if kind == row.settles and decision.stored is not None:
                settled = self._settled(kind, folder, decision)
                why += f"; {settled}" if settled else f"; the {kind} has changed"
                if settled:
                    outputs[kind] = decision.stored[kind]
                    continue
            outputs[kind] = store.put(kind, folder, stage_key=decision.key, inputs=decision.inputs)
        made = KeyRecord(stage=row.name, run=self.record.id, outputs=outputs, ingredients=decision.ingredients)
        store.keep_key(decision.key, made)
        self._note(row, state="done", outputs=outputs, why=why, ended=self._now())
        if not self._leaders.leads(row.name):
            store.drop_work(decision.key)
        if row.beside:
            self._tidy(self.record.stage(row.beside).key)
        return Outcome(stage=row.name, how="ran", why=why, outputs=outputs)

    def _tidy(self, key: str) -> None:
        """Drop the work folder of a leader whose follower is done, unless another run works in it."""
        lock = self.setting.store.lock(key, self._stop.wait)
        if lock.take():
            self.setting.store.drop_work(key)
            lock.release()

    def _stored(self, row: StageEntry, decision: Decision) -> dict[str, str]:
        """What a stage that measures the world is told of an earlier measurement; of one that is corrupt nothing."""
        if not row.settles or decision.stored is None:
            return {}
        try:
            self._prove(row.settles, decision.stored[row.settles])
        except Refused:
            return {}
        folder = self.setting.store.folder(row.settles, decision.stored[row.settles])
        return {row.settles: str(folder.resolve())}

    def _resumed(self, row: StageEntry, text: str) -> None:
        """Add to the reason what the stage goes on from."""
        self._note(row, why=f"{self.record.stage(row.name).why}; {text}")

    def _settled(self, kind: str, measured: Path, decision: Decision) -> str:
        """Why the stored measurement stays; empty when it does not, as where it is corrupt."""
        assert decision.stored is not None
        try:
            self._prove(kind, decision.stored[kind])
        except Refused:
            return ""
        stored = self.setting.store.folder(kind, decision.stored[kind])
        if self.setting.settle[kind](stored, measured, self.config):
            return f"the stored {kind} is kept, within tolerance"
        if decision.unfinished and self.setting.there[kind](stored, measured, self.config):
            return f"the unfinished run {decision.unfinished} keeps its {kind}"
        return ""

    def _known(self, row: StageEntry) -> dict[str, str]:
        """kind -> digest of the stage's inputs, as far as they have been made."""
        return {kind: digest for kind, digest in self.record.outputs.items() if kind in row.inputs}

    def _prove(self, kind: str, digest: str) -> None:
        """Hash an artifact once a run before anything reads it."""
        if (kind, digest) not in self._verified:
            self.setting.store.verify(kind, digest)
            self._verified.add((kind, digest))

    def _fail(self, row: StageEntry, error: BaseException, seconds: float) -> None:
        said = str(error) if isinstance(error, FleetuneError) else f"{type(error).__name__}: {error}"
        if isinstance(error, FleetuneError) and self.error is None:
            self.error = error
        with suppress(OSError):  # a full disk takes no record
            self._note(row, state="failed", error=said, ended=self._now())
        if isinstance(error, Refused) and "plan" in row.inputs:  # what cannot be trained can be looked at
            report = self.setting.store.folder("plan", self.record.outputs["plan"]) / "report.html"
            if report.is_file():
                self._tell(row.name, "note", f"the report of its plan is {report}")
        self._tell(row.name, "failed", said, seconds)

    def _note(self, row: StageEntry, **fields: Any) -> None:
        """Change a stage's record and write run.json."""
        with self._change:
            stages = tuple(
                dataclasses.replace(stage, **fields) if stage.stage == row.name else stage
                for stage in self.record.stages
            )
            self.record = dataclasses.replace(self.record, stages=stages)
            self.setting.store.runs.save(self.record)

    def _update(self, **fields: Any) -> None:
        with self._change:
            self.record = dataclasses.replace(self.record, **fields)
            self.setting.store.runs.save(self.record)

    def _tell(self, stage: str, kind: str, text: str, seconds: float = 0.0) -> None:
        self.setting.listen(StageEvent(stage=stage, kind=kind, text=text, seconds=seconds))

    def _now(self) -> str:
        return self.setting.store.clock().isoformat()
