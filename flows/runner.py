"""Runs the stages of one run: reuses by key or runs, stores outputs, and keeps run.json up to date.

Does not depend on Prefect. `stage(name)` may be called from several threads, for stages that run concurrently.
"""

import dataclasses
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

from fleetune import filesystem
from fleetune.contracts import json_io
from fleetune.contracts.fleet import DOCKER
from fleetune.contracts.record import record
from fleetune.contracts.run_config import RunConfig
from fleetune.contracts.task import RunFacts, StageTask
from fleetune.errors import FleetuneError, Refused, TryAgain
from fleetune.launching import Job, open_stage_launchers
from fleetune.store import KeyRecord, RunRecord, StageRecord
from fleetune.store.runs import new_run_id
from flows import attempt, yaml_file
from flows.attempt import resumable_attempts, write_ingredients
from flows.cache_policy import CachePolicy, Decision
from flows.context import RunContext, StageSelection
from flows.events import StageEvent
from flows.external import version_of
from flows.followers import FollowedStages
from stages.catalog import StageSpec, config_slice, find_stage, waves

GRACE_S = 5.0


@record
class Outcome:
    """The result of one stage."""

    stage: str
    how: str
    """ran, reused or stopped"""
    why: str
    outputs: dict[str, str]


class Runner:
    """One run, from its first stage to its last; a context manager around the calls of `stage`."""

    def __init__(self, context: RunContext, config: RunConfig, selection: StageSelection) -> None:
        """Refused when the selection or the config is not possible; nothing is written yet."""
        self.context = context
        self.config = config = context.pin(config)
        self.cache_policy = CachePolicy(context, config, selection)
        self.specs = self.cache_policy.specs()
        moment, commit = context.store.clock(), context.commit()
        self.record = RunRecord(
            id=new_run_id(config.name, moment, context.chance),
            config=config,
            seed=config.seed,
            code_version=version_of("fleetune"),
            commit=commit.id,
            dirty=commit.dirty,
            started=moment.isoformat(),
            stages=tuple(StageRecord(stage=spec.name) for spec in self.specs),
        )
        self.error: FleetuneError | None = None
        self._leaders = FollowedStages(self.specs)
        self._plain = json_io.dump(config)
        self._facts = RunFacts(
            name=config.name,
            started=self.record.started,
            code_version=self.record.code_version,
            commit=self.record.commit,
            dirty=self.record.dirty,
            settings=yaml_file.text(self._plain),
        )
        self._from_stage = selection.from_stage
        self._change = threading.Lock()
        self._stop = threading.Event()
        self._jobs: dict[str, Job] = {}
        self._verified: set[tuple[str, str]] = set()
        self._open = ExitStack()
        self._folders = filesystem.folders(context.store.local)
        self._containers = open_stage_launchers(lambda text: None)

    def __enter__(self) -> "Runner":
        self._open.enter_context(self.context.store.runs.alive(self.record.id))
        self._open.enter_context(self._containers)
        self.context.store.tidy()
        self.context.store.runs.save(self.record)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        """Stop every process and write to run.json how the run ended."""
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
        """Stop every process of this run; idempotent, and callable from any thread."""
        self._stop.set()
        for job in list(self._jobs.values()):
            job.stop(GRACE_S)

    def stage(self, name: str) -> Outcome:
        """Reuse or run one stage whose inputs are there; raises the error it ended with."""
        spec = find_stage(self.specs, name)
        begun = time.monotonic()
        try:
            outcome = self._stage(spec)
        except BaseException as raised:
            error = (
                raised if isinstance(raised, FleetuneError) else filesystem.disk_error(raised, self._folders) or raised
            )
            self._leaders.ended(name, ok=False)
            self._fail(spec, error, time.monotonic() - begun)
            raise error from raised.__cause__
        self._leaders.ended(name, ok=True)
        self._tell(name, "done" if outcome.how == "ran" else outcome.how, outcome.why, time.monotonic() - begun)
        return outcome

    def _stage(self, spec: StageSpec) -> Outcome:
        live = bool(spec.follows) and self._leaders.wait_begun(spec.follows)
        leader = self.record.stage(spec.follows) if spec.follows else None
        if leader and not live and leader.state != "done":
            return self._stopped(spec)
        known = self._known(spec)
        store = self.context.store

        def decide() -> Decision:
            return self.cache_policy.decide(spec, {} if leader else known, self.record.id, leader.key if leader else "")

        with store.lock(decide().key, self._stop.wait, lambda: self._tell(spec.name, "note", "waits for another run")):
            decision = dataclasses.replace(decide(), inputs=known)  # again: the other run may have stored it meanwhile
            self._note(spec, key=decision.key, inputs=known, why=decision.why, started=self._now())
            if not decision.runs:
                damage = self._damage(spec, decision)
                if not damage:
                    return self._reused(spec, decision)
                decision = dataclasses.replace(decision, runs=True, why=f"ran: {damage}")
                self._note(spec, why=decision.why)
            return self._follow(spec, decision) if live else self._run(spec, decision)

    def _damage(self, spec: StageSpec, decision: Decision) -> str:
        """Describe damage of the artifacts that would be reused, empty for none; Refused when the stage may not run."""
        for kind, digest in (decision.stored or {}).items():
            try:
                self._verify(kind, digest)
            except Refused as error:
                if self.cache_policy.must_be_stored(spec):
                    raise
                return self.context.store.first_bad(kind, digest) or str(error)
        return ""

    def _reused(self, spec: StageSpec, decision: Decision) -> Outcome:
        assert decision.stored is not None
        self._note(spec, state="done", how="reused", outputs=decision.stored, ended=self._now())
        self._leaders.begun(spec.name, live=False)
        return Outcome(stage=spec.name, how="reused", why=decision.why, outputs=decision.stored)

    def _stopped(self, spec: StageSpec) -> Outcome:
        why = f"stopped: {spec.follows} did not end well"
        self._note(spec, state="stopped", why=why, ended=self._now())
        return Outcome(stage=spec.name, how="stopped", why=why, outputs={})

    def _follow(self, spec: StageSpec, decision: Decision) -> Outcome:
        """Run beside the leader, then run again on the leader's stored outputs and keep the result of that.

        The stored result must not depend on timing: the same stored inputs give the same outputs in every run.
        """
        work = self.context.store.work(self.record.stage(spec.follows).key)
        try:
            self._attempt(spec, decision, {kind: work for kind in spec.inputs})
        except FleetuneError as error:
            self._tell(spec.name, "note", f"could not follow {spec.follows} to its end ({error})")
        if not self._leaders.wait_ended(spec.follows):
            return self._stopped(spec)
        whole = dataclasses.replace(decision, inputs=self._known(spec))
        self._note(spec, inputs=whole.inputs)
        return self._run(spec, whole)

    def _run(self, spec: StageSpec, decision: Decision) -> Outcome:
        for kind, digest in decision.inputs.items():
            self._verify(kind, digest)
        store = self.context.store
        folders = {kind: store.folder(kind, digest) for kind, digest in decision.inputs.items()}
        with resumable_attempts(store, spec, decision.key, decision.ingredients) as earlier:
            outcome = self._keep(spec, decision, self._attempt(spec, decision, folders, earlier))
            for key in earlier:
                store.drop_work(key)
        return outcome

    def _attempt(
        self, spec: StageSpec, decision: Decision, folders: dict[str, Path], earlier: tuple[str, ...] = ()
    ) -> StageTask:
        work = self.context.store.work(decision.key)
        write_ingredients(work, decision.ingredients)
        task = StageTask(
            stage=spec.name,
            run=self.record.id,
            seed=self.config.seed,
            config=config_slice(spec, self._plain),
            inputs={kind: str(folder.resolve()) for kind, folder in folders.items()},
            output=str((work / attempt.OUTPUT).resolve()),
            work=str(work.resolve()),
            earlier=tuple(str(self.context.store.work(key).resolve()) for key in earlier),
            cache=str(self.context.store.cache(spec.name).resolve()),
            stored=self._stored(spec, decision),
            anew=spec.name == self._from_stage,
            facts=self._facts,
        )
        if self.record.stage(spec.name).state != "running":  # a follower is attempted twice
            self._note(spec, state="running", how="ran")
            self._tell(spec.name, "started", decision.why)
        job = self._start(spec, task)
        self._jobs[spec.name] = job
        try:
            if self._stop.is_set():
                raise TryAgain(f"stage {spec.name} was stopped with its run; run it again to go on")
            self._leaders.begun(spec.name, live=True)
            if spec.follows:
                self._leaders.end_with(spec.follows, job)
            attempt.listen_to_end(spec, job, self.context.listen, lambda text: self._resumed(spec, text))
        finally:
            job.stop(GRACE_S)
        return task

    def _start(self, spec: StageSpec, task: StageTask) -> Job:
        """Start in a container if the config asks for it, the stage starts no devices, and its data can be mounted."""
        stages = self.config.stages
        if stages.launcher != DOCKER or not spec.image or not attempt.fits_in_container(spec, self.config):
            return attempt.start(spec, task, self.context.launcher)
        place = self._containers.launcher(stages.image or spec.image)
        task, reads = attempt.for_container(spec, task, self.config)
        return attempt.start(spec, task, place, reads)

    def _keep(self, spec: StageSpec, decision: Decision, task: StageTask) -> Outcome:
        """Store the outputs of a stage, then its key."""
        store, why, outputs = self.context.store, self.record.stage(spec.name).why, {}
        for kind, folder in attempt.outputs_of(spec, task).items():
            if kind == spec.measures and decision.stored is not None:
                settled = self._settled(kind, folder, decision)
                why += f"; {settled}" if settled else f"; the {kind} has changed"
                if settled:
                    outputs[kind] = decision.stored[kind]
                    continue
            outputs[kind] = store.put(kind, folder, stage_key=decision.key, inputs=decision.inputs)
        made = KeyRecord(stage=spec.name, run=self.record.id, outputs=outputs, ingredients=decision.ingredients)
        store.keep_key(decision.key, made)
        self._note(spec, state="done", outputs=outputs, why=why, ended=self._now())
        if not self._leaders.leads(spec.name):
            store.drop_work(decision.key)
        if spec.follows:
            self._tidy(self.record.stage(spec.follows).key)
        return Outcome(stage=spec.name, how="ran", why=why, outputs=outputs)

    def _tidy(self, key: str) -> None:
        """Delete the work folder of a leader whose follower is done, unless another run uses it."""
        lock = self.context.store.lock(key, self._stop.wait)
        if lock.take():
            self.context.store.drop_work(key)
            lock.release()

    def _stored(self, spec: StageSpec, decision: Decision) -> dict[str, str]:
        """kind -> folder of the earlier measurement of a stage that measures; empty if none is usable."""
        if not spec.measures or decision.stored is None:
            return {}
        try:
            self._verify(spec.measures, decision.stored[spec.measures])
        except Refused:
            return {}
        folder = self.context.store.folder(spec.measures, decision.stored[spec.measures])
        return {spec.measures: str(folder.resolve())}

    def _resumed(self, spec: StageSpec, text: str) -> None:
        """Append to the reason of the stage what it resumes from."""
        self._note(spec, why=f"{self.record.stage(spec.name).why}; {text}")

    def _settled(self, kind: str, measured: Path, decision: Decision) -> str:
        """The reason to keep the stored measurement; empty when it is replaced or corrupt."""
        assert decision.stored is not None
        try:
            self._verify(kind, decision.stored[kind])
        except Refused:
            return ""
        stored = self.context.store.folder(kind, decision.stored[kind])
        if self.context.within_tolerance[kind](stored, measured, self.config):
            return f"the stored {kind} is kept, within tolerance"
        if decision.unfinished and self.context.same_members[kind](stored, measured, self.config):
            return f"the unfinished run {decision.unfinished} keeps its {kind}"
        return ""

    def _known(self, spec: StageSpec) -> dict[str, str]:
        """kind -> digest of the stage's inputs that exist already."""
        return {kind: digest for kind, digest in self.record.outputs.items() if kind in spec.inputs}

    def _verify(self, kind: str, digest: str) -> None:
        """Hash an artifact before its first use in this run; Refused when a file is damaged."""
        if (kind, digest) not in self._verified:
            self.context.store.verify(kind, digest)
            self._verified.add((kind, digest))

    def _fail(self, spec: StageSpec, error: BaseException, seconds: float) -> None:
        said = str(error) if isinstance(error, FleetuneError) else f"{type(error).__name__}: {error}"
        if isinstance(error, FleetuneError) and self.error is None:
            self.error = error
        with suppress(OSError):  # a full disk takes no record
            self._note(spec, state="failed", error=said, ended=self._now())
        if isinstance(error, Refused) and "plan" in spec.inputs:  # a plan that cannot be trained still has a report
            report = self.context.store.folder("plan", self.record.outputs["plan"]) / "report.html"
            if report.is_file():
                self._tell(spec.name, "note", f"the report of its plan is {report}")
        self._tell(spec.name, "failed", said, seconds)

    def _note(self, spec: StageSpec, **fields: Any) -> None:
        """Change fields of a stage's record and write run.json."""
        with self._change:
            stages = tuple(
                dataclasses.replace(stage, **fields) if stage.stage == spec.name else stage
                for stage in self.record.stages
            )
            self.record = dataclasses.replace(self.record, stages=stages)
            self.context.store.runs.save(self.record)

    def _update(self, **fields: Any) -> None:
        with self._change:
            self.record = dataclasses.replace(self.record, **fields)
            self.context.store.runs.save(self.record)

    def _tell(self, stage: str, kind: str, text: str, seconds: float = 0.0) -> None:
        self.context.listen(StageEvent(stage=stage, kind=kind, text=text, seconds=seconds))

    def _now(self) -> str:
        return self.context.store.clock().isoformat()


def run_without_prefect(runner: Runner) -> RunRecord:
    """Run every stage in threads, without Prefect; raises the first error once the stages beside it have ended."""
    with runner, ThreadPoolExecutor(thread_name_prefix="stage") as pool:
        try:
            for wave in waves(runner.specs):
                _all([pool.submit(runner.stage, spec.name) for spec in wave])
        except BaseException:
            runner.stop()  # before the pool waits for its threads
            raise
    return runner.record


def _all(futures: list[Future[Outcome]]) -> None:
    wait(futures)
    for future in futures:
        future.result()
