"""Execution of the stages of one run: each is reused by its key, or run and its outputs stored.

Does not depend on Prefect. `run_stage(name)` may be called from several threads, for stages that run concurrently.
"""

import dataclasses
import functools
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
from fleetune.models.earlier_run import is_continued
from fleetune.store import KeyRecord, Lock, PromotionDecision, RunRecord, StageRecord
from fleetune.store.runs import end_state, new_run_id
from flows import attempt, promotion, yaml_file
from flows.attempt import resumable_attempts, write_ingredients
from flows.cache_policy import CachePolicy, Decision
from flows.context import RunContext, StageSelection
from flows.promoted_start import check_start, move_note
from flows.provenance import version_of
from flows.receipt import write_receipt
from flows.tracking import FollowedStages, RunTracker, StageEvent
from stages.catalog import StageSpec, config_slice, content_names, find_stage


@record
class Outcome:
    """The result of one stage."""

    stage: str
    how: str
    """ran, reused or stopped"""
    why: str
    outputs: dict[str, str]


class Runner:
    """One run, from its first stage to its last; a context manager around the calls of `run_stage`."""

    def __init__(self, context: RunContext, config: RunConfig, selection: StageSelection) -> None:
        """Refused when the selection or the config is not possible; nothing is written yet."""
        self.context = context
        if selection.rerun is None:  # a past run starts where it started
            config = promotion.pin_start(context.store, config)
        self.config = config = context.pin(config)
        check_start(config.model)
        self.cache_policy = CachePolicy(context, config, selection)
        self.specs = self.cache_policy.specs
        run = _new_record(context, config, self.specs, selection.kind)
        self._tracker = RunTracker(context.store, context.listen, run)
        self._followed = FollowedStages(self.specs)
        self._plain = json_io.dump(config)
        self._facts = RunFacts(
            name=config.name,
            started=run.started,
            code_version=run.code_version,
            commit=run.commit,
            dirty=run.dirty,
            settings=yaml_file.text(self._plain),
            trained_on=selection.trained_on,
            continued=is_continued(config.model),
        )
        self.selection = selection
        self.rerun_of = selection.rerun or ""
        self.given = selection.given
        self._stop = threading.Event()
        self._jobs: dict[str, Job] = {}
        self._open = ExitStack()
        self._folders = filesystem.folders(context.store.local)
        self._containers = open_stage_launchers(lambda text: None) if config.stages.launcher == DOCKER else None

    @property
    def record(self) -> RunRecord:
        """The run's record, as far as the run has come."""
        return self._tracker.record

    @property
    def error(self) -> FleetuneError | None:
        """The first error of a stage; None while there is none."""
        return self._tracker.error

    def __enter__(self) -> "Runner":
        self._open.enter_context(self.context.store.runs.alive(self.record.id))
        if self._containers is not None:
            self._open.enter_context(self._containers)
        self.context.store.tidy()
        self._tracker.update(number=self.context.store.runs.next_number())
        for note in filter(None, (self._move_note(), promotion.split_note(self.context.store, self.config))):
            self.context.listen(StageEvent(stage="run", kind="note", text=note))
        return self

    def _move_note(self) -> str:
        """A sentence if the run that is repeated had its start in a folder which is gone; else empty."""
        try:
            past = self.context.store.runs.load(self.rerun_of) if self.rerun_of else None
        except Refused:  # its record was deleted meanwhile
            return ""
        return move_note(past.config, self.config) if past else ""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        """Stop every process and write to run.json how the run ended."""
        stopped, told = self.stopped and self.error is None, self._tracker.stop_error
        self.stop()
        interrupted = stopped if error is None else error is told or not isinstance(error, Exception)
        failure = error if isinstance(error, FleetuneError) else self.error or told
        state = end_state(failure or error, interrupted)
        with self._open, suppress(OSError) if error or failure else nullcontext():  # a full disk takes no record
            self._tracker.update(
                state=state,
                ended=self._tracker.now(),
                error=str(failure or ""),
                exit_code=failure.exit_code if failure else 0,
            )
            if state == "done":
                self._write_receipt()

    def _write_receipt(self) -> None:
        """Write down what the run came from and has made; a note if the store was damaged meanwhile."""
        try:
            write_receipt(self.context.store, self.record)
        except Refused as error:
            self._tracker.emit("run", "note", f"there is no receipt: {error}")

    def decide_promotion(self) -> PromotionDecision | None:
        """Decide whether the trained model is promoted, after the last stage; None when the config has no `promote`."""
        decided = promotion.decide(self.context.store, self.record, self._stop.wait)
        if decided is not None:
            what = "promoted" if decided.promoted else "not promoted"
            self.context.listen(StageEvent(stage="run", kind="note", text=f"{what}: {decided.why}"))
        return decided

    def stop(self) -> None:
        """Stop every process of this run; idempotent, and callable from any thread."""
        self._stop.set()
        jobs = dict(self._jobs)
        with ThreadPoolExecutor(max(1, len(jobs)), thread_name_prefix="stop") as pool:
            list(pool.map(lambda name: jobs[name].stop(find_stage(self.specs, name).end_s), jobs))

    @property
    def stopped(self) -> bool:
        """True once `stop` was called."""
        return self._stop.is_set()

    def run_stage(self, name: str) -> Outcome:
        """Reuse or run one stage whose inputs are there; raises the error it ended with."""
        spec = find_stage(self.specs, name)
        begun = time.monotonic()
        try:
            outcome = self._reuse_or_run(spec)
        except BaseException as raised:
            error = (
                raised if isinstance(raised, FleetuneError) else filesystem.disk_error(raised, self._folders) or raised
            )
            self._followed.end(name, ok=False)
            if self.stopped and isinstance(error, TryAgain):
                self._tracker.stop_stage(spec, error, time.monotonic() - begun)
            else:
                self._tracker.fail_stage(spec, error, time.monotonic() - begun)
            raise error from raised.__cause__
        self._followed.end(name, ok=True)
        self._tracker.emit(name, "done" if outcome.how == "ran" else outcome.how, outcome.why, time.monotonic() - begun)
        return outcome

    def _reuse_or_run(self, spec: StageSpec) -> Outcome:
        """Wait for the stage that this one follows, lock the key, decide, then reuse or run."""
        live = bool(spec.follows) and self._followed.wait_begun(spec.follows)
        leader = self.record.stage(spec.follows) if spec.follows else None
        if leader and not live and leader.state != "done":
            return self._stopped(spec)
        known = self._known_inputs(spec)
        store = self.context.store

        def decide() -> Decision:
            return self.cache_policy.decide(spec, {} if leader else known, self.record.id, leader.key if leader else "")

        with store.lock(
            decide().key, self._stop.wait, lambda by: self._tracker.emit(spec.name, "note", f"waits for {by}")
        ):
            with self._in_use(spec):
                decision = dataclasses.replace(decide(), inputs=known)  # again: another run may have stored it
                self._tracker.update_stage(
                    spec.name, key=decision.key, inputs=known, why=decision.why, started=self._tracker.now()
                )
                if not decision.runs:
                    damage = self.cache_policy.damage(spec, decision)
                    if not damage:
                        return self._reused(spec, decision)
                    decision = dataclasses.replace(decision, runs=True, why=f"ran: {damage}")
                    self._tracker.update_stage(spec.name, why=decision.why)
            return self._follow(spec, decision) if live else self._run(spec, decision)

    def _in_use(self, spec: StageSpec) -> Lock:
        """The lock under which artifacts are found or stored and named in the run's record, before any are removed."""
        return self.context.store.in_use(
            self._stop.wait, lambda by: self._tracker.emit(spec.name, "note", f"waits until old runs are removed: {by}")
        )

    def _reused(self, spec: StageSpec, decision: Decision) -> Outcome:
        assert decision.stored is not None
        self._tracker.end_stage(spec.name, state="done", how="reused", outputs=decision.stored)
        self._followed.begin(spec.name, live=False)
        return Outcome(stage=spec.name, how="reused", why=decision.why, outputs=decision.stored)

    def _stopped(self, spec: StageSpec) -> Outcome:
        """End a follower whose leader failed."""
        why = f"stopped: {spec.follows} did not end well"
        self._tracker.end_stage(spec.name, state="stopped", why=why)
        return Outcome(stage=spec.name, how="stopped", why=why, outputs={})

    def _follow(self, spec: StageSpec, decision: Decision) -> Outcome:
        """Run beside the leader, then run again on the leader's stored outputs and keep the result of that.

        The stored result must not depend on timing: the same stored inputs give the same outputs in every run.
        """
        work = self.context.store.work(self.record.stage(spec.follows).key)
        try:
            self._attempt(spec, decision, {kind: work for kind in spec.inputs}, live=True)
        except FleetuneError as error:
            if not self.stopped:
                self._tracker.emit(spec.name, "note", f"could not follow {spec.follows} to its end ({error})")
        if not self._followed.wait_ended(spec.follows):
            return self._stopped(spec)
        whole = dataclasses.replace(decision, inputs=self._known_inputs(spec))
        self._tracker.update_stage(spec.name, inputs=whole.inputs)
        return self._run(spec, whole)

    def _run(self, spec: StageSpec, decision: Decision) -> Outcome:
        """Run on verified stored inputs, resuming unfinished attempts where the stage can."""
        for kind, digest in decision.inputs.items():
            self.cache_policy.verify(kind, digest)
        store = self.context.store
        folders = {kind: store.folder(kind, digest) for kind, digest in decision.inputs.items()}
        measured = self._in_use(spec) if spec.measures and decision.stored else nullcontext()
        with measured, resumable_attempts(store, spec, decision.key, decision.ingredients) as earlier:
            outcome = self._store_outputs(spec, decision, self._attempt(spec, decision, folders, earlier))
            for key in earlier:
                store.drop_work(key)
        return outcome

    def _attempt(
        self,
        spec: StageSpec,
        decision: Decision,
        folders: dict[str, Path],
        earlier: tuple[str, ...] = (),
        live: bool = False,
    ) -> StageTask:
        """Run the stage's process to its end on input `folders`; raises the error it ended with. live: beside the stage
        that it follows, and to be ended soon after that one."""
        work = self.context.store.work(decision.key)
        measured = self.cache_policy.stored_measurement(spec, decision)
        write_ingredients(work, decision.ingredients)
        task = StageTask(
            stage=spec.name,
            run=self.record.id,
            seed=self.config.seed,
            config=config_slice(spec, self._plain),
            inputs={kind: str(folder.resolve()) for kind, folder in folders.items()},
            content={name: decision.ingredients[f"content.{name}"] for name in content_names(spec, self._plain)},
            output=str((work / attempt.OUTPUT).resolve()),
            work=str(work.resolve()),
            earlier=tuple(str(self.context.store.work(key).resolve()) for key in earlier),
            cache=str(self.context.store.cache(spec.name).resolve()),
            stored={kind: str(folder.resolve()) for kind, folder in measured.items()},
            anew=self.cache_policy.is_anew(spec),
            facts=self._facts,
        )
        if self.record.stage(spec.name).state != "running":  # a follower is attempted twice
            self._tracker.update_stage(spec.name, state="running", how="ran")
            self._tracker.emit(spec.name, "started", decision.why)
        job = self._start(spec, task)
        self._jobs[spec.name] = job
        try:
            if self._stop.is_set():
                raise TryAgain(f"stage {spec.name} was stopped with its run; run it again to go on")
            self._followed.begin(spec.name, live=True)
            if live:
                self._followed.stop_after(spec.follows, job)
            attempt.listen_to_end(
                spec, job, self.context.listen, functools.partial(self._tracker.append_reason, spec.name)
            )
        finally:
            job.stop(spec.end_s)
        return task

    def _start(self, spec: StageSpec, task: StageTask) -> Job:
        """Start in a container if the config asks for it, the stage starts no devices, and its data can be mounted."""
        stages = self.config.stages
        if self._containers is None or not spec.image or not attempt.fits_in_container(spec, self.config):
            return attempt.start(spec, task, self.context.launcher, self._stop.is_set)
        place = self._containers.launcher(stages.image or spec.image)
        task, reads = attempt.for_container(spec, task, self.config)
        return attempt.start(spec, task, place, self._stop.is_set, reads)

    def _store_outputs(self, spec: StageSpec, decision: Decision, task: StageTask) -> Outcome:
        """Store the outputs of a stage, then its key, then the record that names them."""
        self.cache_policy.check_contents(spec)
        store, why, outputs = self.context.store, self.record.stage(spec.name).why, {}
        folders = attempt.outputs_of(spec, task)
        kept: dict[str, str] = {}
        if spec.measures and decision.stored is not None:
            verdict = self.cache_policy.verdict(spec, folders, decision)
            kept = {spec.measures: decision.stored[spec.measures]} if verdict.keep else {}
            why += f"; {verdict.why}"
        with self._in_use(spec):
            for kind, folder in folders.items():
                if kind in kept:
                    outputs[kind] = kept[kind]
                    continue
                outputs[kind] = store.put(kind, folder, stage_key=decision.key, inputs=decision.inputs)
            made = KeyRecord(stage=spec.name, run=self.record.id, outputs=outputs, ingredients=decision.ingredients)
            store.keep_key(decision.key, made)
            self._tracker.end_stage(spec.name, state="done", outputs=outputs, why=why)
        if spec.name not in self._followed:
            store.drop_work(decision.key)
        if spec.follows:
            self._drop_work(self.record.stage(spec.follows).key)
        return Outcome(stage=spec.name, how="ran", why=why, outputs=outputs)

    def _drop_work(self, key: str) -> None:
        """Delete the work folder of a leader whose follower is done, unless another run uses it."""
        lock = self.context.store.lock(key, self._stop.wait)
        if lock.take():
            self.context.store.drop_work(key)
            lock.release()

    def _known_inputs(self, spec: StageSpec) -> dict[str, str]:
        """kind -> digest of the stage's inputs that exist already."""
        known = {**self.given, **self.record.outputs}
        return {kind: digest for kind, digest in known.items() if kind in spec.inputs}


def _new_record(context: RunContext, config: RunConfig, specs: Sequence[StageSpec], kind: str) -> RunRecord:
    """The record of a run that begins now, with all its stages waiting."""
    moment, commit = context.store.clock(), context.commit()
    return RunRecord(
        id=new_run_id(config.name, moment, context.token_hex),
        kind=kind,
        config=config,
        seed=config.seed,
        code_version=version_of("fleetune"),
        commit=commit.id,
        dirty=commit.dirty,
        started=moment.isoformat(),
        stages=tuple(StageRecord(stage=spec.name) for spec in specs),
    )
