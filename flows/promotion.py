"""Promoted models: a run starts from the last one of its config name, and is promoted when evaluation improves.

Does not depend on Prefect.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.checkpoint_path import CHECKPOINT
from fleetune.contracts.metrics import EvaluationMetrics, Score
from fleetune.contracts.run_config import ModelRequest, PromotionRequest, RunConfig
from fleetune.errors import Refused
from fleetune.store import PromotionDecision, RunRecord, Store
from flows.promoted_start import model_folder, start_digest, without_place

PREPARE = "prepare"


def pin_start(store: Store, config: RunConfig) -> RunConfig:
    """The config with the checkpoint that its name promoted last as its start; unchanged while there is none.

    A promoted model that began with another `model` section is none of this config. Refused when the checkpoint is
    damaged or gone.
    """
    if config.promote is None:
        return config
    last = store.promotions.last(config.name, _digest(config.model))
    if last is None:
        return config
    if bad := store.first_bad(CHECKPOINT, last.checkpoint):
        raise Refused(
            f"promote: the model that {last.run} promoted cannot be the start of this run ({bad}); "
            f"fleetune rerun {last.run} makes it anew, or give this config another name to begin without it"
        )
    return replace(config, model=_starting_from(config.model, model_folder(store.folder(CHECKPOINT, last.checkpoint))))


def split_note(store: Store, config: RunConfig) -> str:
    """A sentence if what is tested on is held out by content, and was not for the promoted start; else empty."""
    start = start_digest(config.model)
    made = next((one.run for one in store.promotions.history(config.name) if one.checkpoint == start), None)
    if made is None or not config.data.by_content or config.data.only_tested:
        return ""
    try:
        past = store.runs.load(made).config.data
    except Refused:  # its record was deleted
        return ""
    if past.by_content or isinstance(config.data.validation, str):
        return ""
    return (
        f"{made}, whose model is the start, held test rows out by how many there were, and this run does by their "
        "content: unless the data have a test split, the start may have trained on what is tested on here, and scores "
        "look better than they are; name what to test on (data.validation), or begin from the base model under "
        "another name"
    )


def decide(store: Store, run: RunRecord, pause: Callable[[float], bool]) -> PromotionDecision | None:
    """Decide whether an evaluated run's checkpoint is promoted, and write that down; None without `promote`.

    A run is decided about once. No run is removed meanwhile, so that a model that is promoted is there. Refused when
    its evaluation cannot be read; `pause` is that of a Lock.
    """
    if run.config.promote is None or "evaluation" not in run.outputs or CHECKPOINT not in run.outputs:
        return None
    with store.in_use(pause):
        return _decide(store, run, run.config.promote, pause)


def _decide(
    store: Store, run: RunRecord, wanted: PromotionRequest, pause: Callable[[float], bool]
) -> PromotionDecision:
    made = run.outputs
    if not store.has(CHECKPOINT, made[CHECKPOINT]):
        raise Refused(f"promote: the model of {run.id} was removed from the store before it could be promoted")
    metrics = json_io.read(EvaluationMetrics, store.folder("evaluation", made["evaluation"]) / "evaluation.json")
    score = next(score for score in metrics.scores if score.name == wanted.score)
    name, registry = run.config.name, store.promotions
    with store.lock(f"promotion-{name}", pause, brief=True):
        if (known := registry.of_run(name, run.id)) is not None:
            return known
        start = start_of(store, run.config)
        origin = registry.origin(name, start) or _digest(run.config.model)
        last = registry.last(name, origin)
        if last is not None and last.checkpoint == made[CHECKPOINT]:
            return last
        gain = (score.after - score.before) * (1 if score.better == "higher" else -1)
        current = last.checkpoint if last is not None else ""
        why = _numbers(score, metrics.scored)
        if start != current:
            promoted_by = last.run if last is not None else "none"
            why += f", but {promoted_by} was promoted meanwhile, from which this run did not start"
        return registry.append(
            PromotionDecision(
                name=name,
                run=run.id,
                promoted=start == current and gain > wanted.least_gain,
                checkpoint=made[CHECKPOINT],
                start=start,
                origin=origin,
                data=made["data"],
                scores=metrics.scores,
                why=why,
                decided=store.clock().isoformat(timespec="seconds"),
            )
        )


def start_of(store: Store, config: RunConfig) -> str:
    """Digest of the promoted checkpoint that a config starts from; empty for any other start."""
    digest = start_digest(config.model)
    return digest if digest and store.promotions.origin(config.name, digest) else ""


def same_as_last(store: Store, planned: RunRecord) -> str:
    """Id of the last run that was decided about, if the predicted run has its settings, start and data; else empty."""
    config = planned.config
    history = store.promotions.history(config.name) if config.promote is not None else ()
    try:
        last = store.runs.load(history[-1].run) if history else None
    except Refused:  # its record was deleted
        return ""
    if last is None or _settings(last.config) != _settings(config):
        return ""
    keys = [next((stage.key for stage in run.stages if stage.stage == PREPARE), "") for run in (last, planned)]
    return last.id if keys[0] and keys[0] == keys[1] else ""


def _starting_from(model: ModelRequest, folder: Path) -> ModelRequest:
    if model.lora is not None:
        return replace(model, lora=replace(model.lora, start=str(folder)))
    changes = {key: value for key, value in (model.config or {}).items() if key != "model_type"}
    return replace(model, source=str(folder), revision=None, config=changes or None)


def _digest(model: ModelRequest) -> str:
    """Digest of a `model` section, whatever commit its name on the hub was pinned to."""
    plain = json_io.dump(replace(model, revision=None))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _settings(config: RunConfig) -> object:
    return json_io.dump(without_place(replace(config, schedule=None)))


def _numbers(score: Score, scored: str) -> str:
    return f"{score.name} {score.before:.4g} before and {score.after:.4g} after training, on {scored}"
