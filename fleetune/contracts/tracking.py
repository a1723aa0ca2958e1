"""The `tracking` section of a run: who is told losses, rates and scores while the model is trained.

No result depends on it, so it is part of no stage key: a run that is tracked elsewhere trains nothing again.
"""

from urllib.parse import urlsplit

from fleetune.contracts.record import one_of, record
from fleetune.contracts.url_passwords import holds_password
from fleetune.errors import Refused

WANDB_MODES = ("online", "offline")


@record
class WandbRequest:
    """Weights & Biases. The API key is never part of a run file: see docs/tracking.md."""

    project: str
    entity: str | None = None
    """User or team that owns the project; by default the key's own."""
    mode: str = "online"
    """`online`, or `offline`: files below the store, which `wandb sync` sends later."""

    def __post_init__(self) -> None:
        if not self.project:
            raise Refused("tracking.wandb: project is empty; give the name of a project")
        one_of("tracking.wandb", "mode", self.mode, WANDB_MODES)


@record
class MlflowRequest:
    """An MLflow tracking server. User, password and token are never part of a run file: see docs/tracking.md."""

    uri: str
    """As MLflow takes it: `http://host:5000`, `sqlite:///mlflow.db`."""
    experiment: str = "fleetune"
    """Created where it does not exist."""

    def __post_init__(self) -> None:
        if not self.uri:
            raise Refused("tracking.mlflow: uri is empty; give a server such as http://host:5000")
        if not self.experiment:
            raise Refused("tracking.mlflow: experiment is empty; give a name, or leave it out")
        try:
            split = urlsplit(self.uri)
        except ValueError as error:
            raise Refused(f"tracking.mlflow: uri cannot be read ({error}); give one such as http://host:5000") from None
        if holds_password(self.uri) or (split.username is not None and split.scheme in ("http", "https")):
            raise Refused(
                f"tracking.mlflow: uri names a user or password for {split.hostname}, which would be kept with the "
                "run; leave them out and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )


@record
class TrackingRequest:
    """Trackers of a run."""

    tensorboard: bool = True
    """True: event files in `tensorboard/RUN` of the store."""
    wandb: WandbRequest | None = None
    mlflow: MlflowRequest | None = None
