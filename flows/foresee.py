"""What a run would do, without doing any of it."""

import dataclasses

from fleetune.store import RunRecord, StageRecord
from flows.runner import Runner
from stages.catalog import StageEntry


def foresee(runner: Runner) -> RunRecord:
    """The record of a dry run: `how` and `why` of every stage, keys and digests as far as they can be known.

    Stages that measure the world are taken to find it unchanged. Refused where a stage that is to be reused is not
    in the store.
    """
    made: dict[str, str] = {}
    stages: dict[str, StageRecord] = {}
    for row in runner.rows:
        stages[row.name] = _foresee(runner, row, made, stages)
        made.update(stages[row.name].outputs)
    return dataclasses.replace(runner.record, state="planned", stages=tuple(stages.values()))


def _foresee(runner: Runner, row: StageEntry, made: dict[str, str], stages: dict[str, StageRecord]) -> StageRecord:
    inputs = {kind: made[kind] for kind in row.inputs if kind in made}
    missing = [kind for kind in row.inputs if kind not in made]
    if missing:
        why = f"ran: beside {row.beside}" if row.beside else f"ran: input {missing[0]} is made anew"
        return StageRecord(stage=row.name, inputs=inputs, how="ran", why=why)
    leader = stages[row.beside].key if row.beside else ""
    decision = runner.judge.decide(row, {} if leader else inputs, beside=leader)
    expected = decision.stored if decision.stored and (row.always or not decision.runs) else {}
    return StageRecord(
        stage=row.name,
        key=decision.key,
        inputs=inputs,
        outputs=expected,
        how="ran" if decision.runs else "reused",
        why=decision.why,
    )
