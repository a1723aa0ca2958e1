"""The arguments of a run beside its config: its surroundings (RunContext) and the selection of its stages."""

import secrets
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field

from fleetune.contracts.record import record
from fleetune.contracts.run_config import RunConfig
from fleetune.contracts.task import LOCAL_DATA
from fleetune.errors import Refused
from fleetune.launching import Launcher, ProcessLauncher, stage_image_id
from fleetune.store import Store
from fleetune.store.runs import ONLY, RUN
from fleetune.store.stage_key import SourceDigests
from flows.provenance import (
    Commit,
    InputFact,
    MeasurementJudge,
    MeasurementTest,
    current_commit,
    data_content,
    device_arithmetic,
    fleet_has_same_devices,
    judge_fleet,
    local_data_content,
    model_content,
    model_marks,
    pin_revisions,
    plan_decisions,
    training_method,
    version_of,
)
from flows.tracking import EventListener, ignore_event
from stages.catalog import (
    DEVICE_ARITHMETIC,
    PLAN_DECISIONS,
    STAGES,
    TRAINING_METHOD,
    StageSpec,
    find_stage,
    producer_of,
    waves,
)


@record
class RunContext:
    """Dependencies of a run, which tests replace: store, listener, catalog, launcher, and state outside the store."""

    store: Store
    listen: EventListener = ignore_event
    catalog: tuple[StageSpec, ...] = STAGES
    launcher: Launcher = field(default_factory=ProcessLauncher)
    contents: Mapping[str, Callable[[RunConfig], str]] = field(
        default_factory=lambda: {
            "data": data_content,
            "model weights": model_content,
            LOCAL_DATA: local_data_content,
        }
    )
    """name of external content, as in the catalog -> its digest"""
    marks: Mapping[str, Callable[[RunConfig], Hashable]] = field(default_factory=lambda: {"model weights": model_marks})
    """name of external content that stages read without a look at its digest -> what shows that it was touched"""
    input_facts: Mapping[str, InputFact] = field(
        default_factory=lambda: {
            PLAN_DECISIONS: plan_decisions,
            DEVICE_ARITHMETIC: device_arithmetic,
            TRAINING_METHOD: training_method,
        }
    )
    """name of a key fact, as in the catalog -> its text, computed from input folders"""
    pin: Callable[[RunConfig], RunConfig] = pin_revisions
    """Pins hub names to commits when the run begins, so that every stage and worker reads the same."""
    image_id: Callable[[str], str] = stage_image_id
    """name of an image that stages run in -> digest of what it holds"""
    versions: Callable[[str], str] = version_of
    sources: Callable[[str], Mapping[str, str]] = field(default_factory=lambda: SourceDigests().of)
    """module -> path and digest of each source file that it runs"""
    commit: Callable[[], Commit] = current_commit
    judges: Mapping[str, MeasurementJudge] = field(default_factory=lambda: {"fleet": judge_fleet})
    """kind -> decision whether the stored measurement is kept"""
    same_members: Mapping[str, MeasurementTest] = field(default_factory=lambda: {"fleet": fleet_has_same_devices})
    """kind -> test that an unfinished run's measurement names the same devices; it is then kept, however far off"""
    token_hex: Callable[[int], str] = secrets.token_hex


@record
class StageSelection:
    """The stages that the user selected with --from, --only and --until."""

    from_stage: str | None = None
    """Earlier stages must be stored; this one runs even when its key is known."""
    only: str | None = None
    """Its inputs must be stored; no later stage runs."""
    rerun: str | None = None
    """Id of the run that is rerun: reasons are differences from it."""
    until: str | None = None
    """The last stage; stages that it does not need are left out."""
    force: bool = False
    """Stages run even when their keys are known: all, or those from `from_stage` on."""
    kept: tuple[str, ...] = ()
    """Stages that are taken from the store though they always run, so that several runs share one measurement."""
    given: Mapping[str, str] = field(default_factory=dict)
    """kind -> digest of artifacts of another run that this one reads; the stages that made them are left out."""
    beside: str = ""
    """What the run is a part of, as RunRecord.kind says: a comparison, an evaluation; empty for one by itself."""
    trained_on: int | str | None = None
    """RunFacts.trained_on of the run."""

    @property
    def kind(self) -> str:
        """The kind of the run."""
        return self.beside or (ONLY if self.only else RUN)

    @property
    def end_words(self) -> list[str]:
        """The options of the command line that let a run end where this one ends."""
        return ["--only", self.only] if self.only else ["--until", self.until] if self.until else []

    def stages(self, catalog: Sequence[StageSpec]) -> tuple[StageSpec, ...]:
        """The stages of the run, in order: all, or the last one selected and those that it needs."""
        order = [spec for wave in waves(catalog) for spec in wave]
        last = self.only or self.until
        if last is None:
            return tuple(order)
        needed, todo = set(), [find_stage(catalog, last)]
        while todo:
            spec = todo.pop()
            needed.add(spec.name)
            todo += [producer_of(catalog, kind) for kind in spec.inputs if kind not in self.given]
        return tuple(spec for spec in order if spec.name in needed)

    def must_be_stored(self, catalog: Sequence[StageSpec], stage: str) -> bool:
        """True when the run starts from stored outputs of this stage."""
        if stage in self.kept:
            return True
        names = [spec.name for spec in self.stages(catalog)]
        first = names.index(self.from_stage) if self.from_stage in names else len(names)
        if self.only is not None and stage != self.only:
            return self.from_stage is None or names.index(stage) < first
        return self.from_stage is not None and names.index(stage) < first

    def way_to_run(self, stage: str) -> str:
        """Advice on how to change the options so that a stage runs that `must_be_stored`."""
        if self.from_stage is None:
            return f"leave out --only, or add --from {stage}"
        given = "--from and --only" if self.only is not None else "--from"
        return f"give --from {stage} instead of --from {self.from_stage}, or leave out {given}"

    def validate(self, catalog: Sequence[StageSpec], config: RunConfig) -> None:
        """Refuse unknown stages, contradicting options, and stages that would run on simulated devices."""
        for name in (self.from_stage, self.only, self.until):
            if name is not None:
                find_stage(catalog, name)
        if self.only is not None and self.until is not None:
            raise Refused(f"--only {self.only} and --until {self.until} both say where to stop; give one of them")
        specs = self.stages(catalog)
        names = [spec.name for spec in specs]
        if config.data.only_tested and any(spec.needs_machines for spec in specs):
            raise Refused(
                "data.validation is 1, so that no sample is left to train on; give a share below 1, or a source"
            )
        if self.until is not None and self.from_stage is not None and self.from_stage not in names:
            order = [spec.name for spec in catalog]
            late = order.index(self.from_stage) > order.index(self.until)
            why = "comes after" if late else "is not needed for"
            raise Refused(f"--from {self.from_stage} {why} --until {self.until}; give an earlier stage")
        for spec, before in zip(specs[1:], names, strict=False):
            if spec.needs_machines and config.fleet.simulated:
                raise Refused(
                    f"device {config.fleet.simulated[0]} is simulated: a run with it ends after {before}; "
                    f"use --until {before}"
                )
