"""The whole config of a run."""

from dataclasses import field
from typing import Annotated, Any

from pydantic import Field

from fleetune.contracts.config.data import DataRequest
from fleetune.contracts.config.fleet import FleetRequest
from fleetune.contracts.config.model import ModelRequest
from fleetune.contracts.config.training import TrainingRequest
from fleetune.contracts.fleet import LAUNCHERS, PROCESS
from fleetune.contracts.record import a_name, not_negative, one_of, record


@record
class StrategyRequest:
    """Which strategy plans, and the options of that strategy (checked by the strategy itself)."""

    name: str = "asteroid"
    options: dict[str, Any] = field(default_factory=dict)


@record
class StagesRequest:
    """Where the stages run that conduct no devices: plan, monitor and evaluate."""

    launcher: str = PROCESS
    """`docker` runs each in a container of this machine's engine, without a network."""
    image: str | None = None
    """Instead of fleetune-plan and fleetune-train, one for all of them."""

    def __post_init__(self) -> None:
        one_of("stages", "launcher", self.launcher, LAUNCHERS)


@record
class ProfileRequest:
    """What is measured beyond the costs of units."""

    scores: bool = False
    """How much every head of attention matters, by passes over the first round's micro-batches: what D2FT chooses by.
    For transformers only."""


@record
class RunConfig:
    """A run file: fleet, model, data, training, strategy. Sections may be the name of a file in configs/."""

    name: str
    seed: int = 0
    fleet: FleetRequest = FleetRequest()
    model: ModelRequest
    data: DataRequest
    training: TrainingRequest
    strategy: StrategyRequest = StrategyRequest()
    stages: Annotated[StagesRequest, Field(exclude_if=lambda value: value == StagesRequest())] = StagesRequest()
    profile: Annotated[ProfileRequest, Field(exclude_if=lambda value: value == ProfileRequest())] = ProfileRequest()

    def __post_init__(self) -> None:
        a_name("run", self.name)
        not_negative("run", seed=self.seed)
