"""Predicts what a run would do, without writing anything."""

import dataclasses

from fleetune.store import RunRecord, StageRecord
from flows.runner import Runner
from stages.catalog import StageSpec


def predict_run(runner: Runner) -> RunRecord:
    """Return the record of a dry run: `how` and `why` of every stage, keys and digests as far as they are known.

    Measurements are assumed to be unchanged. Refused when a stage that must be stored is not.
    """
    made: dict[str, str] = {}
    stages: dict[str, StageRecord] = {}
    for spec in runner.specs:
        stages[spec.name] = _predict_stage(runner, spec, made, stages)
        made.update(stages[spec.name].outputs)
    return dataclasses.replace(runner.record, state="planned", stages=tuple(stages.values()))


def _predict_stage(
    runner: Runner, spec: StageSpec, made: dict[str, str], stages: dict[str, StageRecord]
) -> StageRecord:
    inputs = {kind: made[kind] for kind in spec.inputs if kind in made}
    missing = [kind for kind in spec.inputs if kind not in made]
    if missing:
        why = f"ran: beside {spec.follows}" if spec.follows else f"ran: input {missing[0]} is made anew"
        return StageRecord(stage=spec.name, inputs=inputs, how="ran", why=why)
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
