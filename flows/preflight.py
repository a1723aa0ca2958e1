"""What is wrong with a run that no device is needed to see, said before discovery begins and in dry runs.

One place, called with what is going to run: stages that are reused have been proven by having run. Each check is a
pure function of the room whose business it is.
"""

from fleetune.contracts.run_config import ModelRequest, RunConfig, TrainingRequest
from fleetune.errors import Refused
from fleetune.store import RunRecord

MOST_SEED = 2**63 - 2
"""What every generator takes, and the next one too."""


def prove(planned: RunRecord) -> None:
    """Refuse a foreseen run that could not end well, by the first thing that is wrong; seconds at most."""
    config = planned.config
    running = {stage.stage for stage in planned.stages if stage.how == "ran"}
    if config.seed > MOST_SEED:
        raise Refused(f"run: seed {config.seed} is beyond 64 bits; give one of at most {MOST_SEED}")
    if "train" in running:
        _prove_schedule(config.training)
    if "plan" in running:
        _prove_strategy(config)
    if "prepare" in running:
        from fleetune.data import validate_data

        validate_data(config.data, config.model.task)
        _prove_model(config.model)


def _prove_schedule(training: TrainingRequest) -> None:
    if training.warmup_rounds > training.rounds:
        raise Refused(
            f"training: warmup_rounds is {training.warmup_rounds}, but the run has {training.rounds} rounds and would "
            "never reach its learning rate; give fewer"
        )


def _prove_strategy(config: RunConfig) -> None:
    from fleetune.planning import validate_request

    joining = config.fleet.join is not None
    devices = None if joining else [device.name for device in config.fleet.devices]
    validate_request(config.strategy, devices, config.profile.scores)


def _prove_model(model: ModelRequest) -> None:
    """Names of modules and parameters, against the model without its weights; only where some are given, for it takes
    seconds to import."""
    if model.lora is None and not model.freeze:
        return
    from fleetune.models.skeleton import skeleton
    from fleetune.models.source import configuration

    skeleton(configuration(model), model)
