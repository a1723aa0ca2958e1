"""Early checks of a run that need no device; done before the first stage starts and in dry runs.

Only stages that will run are checked. Each check is a pure function of the package that owns the subject.
"""

from fleetune.contracts.run_config import ModelRequest, RunConfig, TrainingRequest
from fleetune.errors import Refused
from fleetune.store import RunRecord

MOST_SEED = 2**63 - 2
"""Largest seed of a run: torch accepts it and the seed after it. (`fleetune solve` uses numpy, which accepts less.)"""


def validate(planned: RunRecord) -> None:
    """Refuse a predicted run that cannot succeed, naming the first problem; takes seconds at most."""
    config = planned.config
    running = {stage.stage for stage in planned.stages if stage.how == "ran"}
    if config.seed > MOST_SEED:
        raise Refused(f"run: seed {config.seed} is beyond 64 bits; give one of at most {MOST_SEED}")
    if "train" in running:
        _validate_schedule(config.training)
    if "plan" in running:
        _validate_strategy(config)
    if "prepare" in running:
        from fleetune.data import validate_data

        validate_data(config.data, config.model.task)
        _validate_model(config.model)


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
    validate_request(config.strategy, devices, config.profile.scores)


def _validate_model(model: ModelRequest) -> None:
    """Check names of modules and parameters against the model on the meta device; skipped when none are given, since
    the import takes seconds."""
    if model.lora is None and not model.freeze:
        return
    from fleetune.models.skeleton import skeleton
    from fleetune.models.source import configuration

    skeleton(configuration(model), model)
