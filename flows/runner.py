"""Conducts the stages of one run: reuse by key or run, store what was made, keep run.json true at every moment.

Knows nothing of Prefect. `stage(name)` may be called from several threads, for stages that run beside each other.
"""

import dataclasses
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fleetune.contracts import wire
from fleetune.contracts.config.run import RunConfig
from fleetune.contracts.fleet import DOCKER
from fleetune.contracts.record import record
from fleetune.contracts.task import StageTask
from fleetune.errors import FleetuneError, Refused, TryAgain
from fleetune.launching import Job, open_stages
from fleetune.store import KeyRecord, RunRecord, StageRecord
from fleetune.store.runs import new_run_id
from flows import attempt
from flows.beside import Leaders
from flows.decide import Decision, Judge
from flows.events import StageEvent
from flows.offline import offline
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
        self.config = config
        self.judge = Judge(setting, config, wish)
        self.rows = self.judge.rows()
        moment = setting.store.clock()
        self.record = RunRecord(
            id=new_run_id(config.name, moment, setting.chance),
            config=config,
            seed=config.seed,
            code_version=version_of("fleetune"),
            started=moment.isoformat(),
            stages=tuple(StageRecord(stage=row.name) for row in self.rows),
        )
        self.error: FleetuneError | None = None
        self._leaders = Leaders(self.rows)
        self._plain = wire.dump(config)
        self._from_stage = wish.from_stage
        self._change = threading.Lock()
        self._stop = threading.Event()
        self._jobs: dict[str, Job] = {}
        self._verified: set[tuple[str, str]] = set()
        self._open = ExitStack()
        self._containers = open_stages(lambda text: None)

    def __enter__(self) -> "Runner":
        self._open.enter_context(self.setting.store.runs.alive(self.record.id))
        self._open.enter_context(self._containers)
        self.setting.store.runs.save(self.record)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        """Whatever happened: no process is left and run.json says how it ended."""
        self.stop()
        interrupted = error is not None and not isinstance(error, Exception)
        failure = error if isinstance(error, FleetuneError) else self.error
        state = "interrupted" if interrupted else "failed" if error or failure else "done"
        self._update(
            state=state,
            ended=self._now(),
            error=str(failure or ""),
            exit_code=failure.exit_code if failure else 0,
        )
        self._open.close()

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
        except BaseException as error:
            self._leaders.ended(name, ok=False)
            self._fail(row, error, time.monotonic() - begun)
            raise
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
                return self._reused(row, decision)
            return self._follow(row, decision) if live else self._run(row, decision)

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
        folders = {kind: self.setting.store.folder(kind, digest) for kind, digest in decision.inputs.items()}
        return self._keep(row, decision, self._attempt(row, decision, folders))

    def _attempt(self, row: StageEntry, decision: Decision, folders: dict[str, Path]) -> StageTask:
        work = self.setting.store.work(decision.key)
        task = StageTask(
            stage=row.name,
            run=self.record.id,
            seed=self.config.seed,
            config=config_slice(row, self._plain),
            inputs={kind: str(folder.resolve()) for kind, folder in folders.items()},
            output=str((work / attempt.OUTPUT).resolve()),
            work=str(work.resolve()),
            cache=str(self.setting.store.cache(row.name).resolve()),
            anew=row.name == self._from_stage,
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
            attempt.listen_to_end(row, job, self.setting.listen)
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
        store, why, outputs = self.setting.store, decision.why, {}
        for kind, folder in attempt.outputs_of(row, task).items():
            if kind == row.settles and decision.stored is not None:
                settled = self._is_settled(kind, folder, decision.stored[kind])
                why += f"; the stored {kind} is kept, within tolerance" if settled else f"; the {kind} has changed"
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

    def _is_settled(self, kind: str, measured: Path, stored: str) -> bool:
        """Whether the stored measurement stays; one that is corrupt does not."""
        try:
            self._prove(kind, stored)
        except Refused:
            return False
        return self.setting.settle[kind](self.setting.store.folder(kind, stored), measured, self.config)

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
        self._note(row, state="failed", error=said, ended=self._now())
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
