"""Before a run: the prediction of what it will do (dry runs end here), and checks that need no device.

Only stages that will run are checked. Each check is a pure function of the package that owns the subject.
"""

import dataclasses
from pathlib import Path

from fleetune.contracts.run_config import BUILT_IN, ModelRequest, RunConfig
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import Refused
from fleetune.store import RunRecord, StageRecord
from flows.runner import Runner
from flows.trackers.open import check_installed
from stages.catalog import StageSpec

MAX_SEED = 2**63 - 2
"""Largest seed of a run: torch accepts it and the seed after it. (`fleetune solve` uses numpy, which accepts less.)"""


def predict_run(runner: Runner) -> RunRecord:
    """Return the record of a dry run: `how` and `why` of every stage, keys and digests as far as they are known.

    Measurements are assumed to be unchanged. Refused when a stage that must be stored is not.
    """
    registry = runner.context.store.runs
    past = {stage.stage for run in registry.all() for stage in run.stages if stage.state == "done"}
    made: dict[str, str] = dict(runner.given)
    stages: dict[str, StageRecord] = {}
    for spec in runner.specs:
        missing = [kind for kind in spec.inputs if kind not in made]
        if missing:
            known = {kind: digest for kind, digest in made.items() if kind in spec.inputs}
            why = _reason_with_unknown_inputs(spec, missing, spec.name in past)
            stages[spec.name] = StageRecord(stage=spec.name, inputs=known, how="ran", why=why)
        else:
            stages[spec.name] = _predict_stage(runner, spec, made, stages)
        made.update(stages[spec.name].outputs)
    number = registry.next_number()
    return dataclasses.replace(runner.record, number=number, state="planned", stages=tuple(stages.values()))


def _reason_with_unknown_inputs(spec: StageSpec, missing: list[str], ran_before: bool) -> str:
    """Why a stage runs whose `missing` inputs are made by this run, and the condition on which it is reused instead."""
    if spec.follows:
        return f"ran: beside {spec.follows}"
    why = f"ran: input {missing[0]} is made anew"
    if not ran_before:
        return why
    same = [kind for kind in missing if kind not in spec.unkeyed_inputs] or spec.key_facts
    return f"{why}; with the same {' and '.join(same)} as in an earlier run it is reused"


def _predict_stage(
    runner: Runner, spec: StageSpec, made: dict[str, str], stages: dict[str, StageRecord]
) -> StageRecord:
    """Predict a stage whose inputs are all known."""
    inputs = {kind: made[kind] for kind in spec.inputs}
    leader = stages[spec.follows].key if spec.follows else ""
    decision = runner.cache_policy.decide(spec, {} if leader else inputs, leader_key=leader)
    expected = decision.stored if decision.stored and (spec.always_runs or not decision.runs) else {}
    return StageRecord(
        stage=spec.name,
        key=decision.key,
        inputs=inputs,
        outputs=expected,
        how="ran" if decision.runs else "reused",
        why=decision.why,
    )


def validate(planned: RunRecord, dry_run: bool = False) -> None:
    """Refuse a predicted run that cannot succeed, naming the first problem; takes seconds at most.

    A dry run also reads all rows of texts that lie here, which a run would do at once.
    """
    config = planned.config
    running = {stage.stage for stage in planned.stages if stage.how == "ran"}
    if config.seed > MAX_SEED:
        raise Refused(f"run: seed {config.seed} is beyond 64 bits; give one of at most {MAX_SEED}")
    check_installed(config.tracking)
    if running & {"profile", "plan", "train"}:
        config.training.check_optimizer()
    if "train" in running:
        _validate_schedule(config.training)
    if "plan" in running:
        _validate_strategy(config)
    if "prepare" in running:
        from fleetune.data.sources import validate_data

        validate_data(config.data, config.model.task)
        _validate_model(config.model)
        if dry_run:
            _validate_rows(config)


def _validate_schedule(training: TrainingRequest) -> None:
    if training.warmup_rounds > training.rounds:
        raise Refused(
            f"training: warmup_rounds is {training.warmup_rounds}, but the run has {training.rounds} rounds and would "
            "never reach its learning rate; give fewer"
        )


def _validate_strategy(config: RunConfig) -> None:
    from fleetune.planning import validate_request

    joining = config.fleet.join is not None
    devices = None if joining else [device.name for device in config.fleet.devices]
    options = validate_request(config.strategy, devices, config.profile.scores)
    config.training.check_scored_rounds(getattr(options, "average_every_rounds", 0), config.strategy.name)


def _validate_rows(config: RunConfig) -> None:
    """Refuse what `prepare` would: lengths and sizes that the model lacks, bad rows, and labels that are no classes."""
    from fleetune.data.sources import is_remote
    from fleetune.data.writer import check_lengths, read_through
    from fleetune.models.model_inputs import check_image_size, input_spec

    model, data = config.model, config.data
    named = model.source is not None and not model.source.startswith("package:") and not Path(model.source).is_dir()
    if named and model.revision is None:
        return  # a name on the hub without a commit, whose files may not be here
    spec = input_spec(model)
    check_image_size(model, data.image_size)
    if not spec.is_text or data.local or is_remote(data):
        return
    check_lengths(data, spec)
    if data.source not in BUILT_IN:
        read_through(data, spec, config.seed)


def _validate_model(model: ModelRequest) -> None:
    """Check names of modules and parameters against the model on the meta device; skipped when none are given, since
    the import takes seconds."""
    if model.lora is None and not model.freeze:
        return
    from fleetune.models.skeleton import skeleton
    from fleetune.models.source import adapter_folder, configuration
    from fleetune.models.start_adapter import refuse_other_settings
    from fleetune.models.units import refuse_tied_adapters

    adapter, whole = adapter_folder(model), skeleton(configuration(model), model)
    if adapter is not None and model.lora is not None:
        refuse_other_settings(adapter, model.lora, whole)
    refuse_tied_adapters(whole, model.lora)
