"""The planning problem: input of every strategy."""

from dataclasses import field
from typing import Any

from fleetune.contracts.fleet import Fleet
from fleetune.contracts.profile import Profile
from fleetune.contracts.record import not_negative, positive, record


@record
class Problem:
    """One round of `micro_batches` micro-batches of `micro_batch_samples` samples each, to be planned on a fleet."""

    fleet: Fleet
    profile: Profile
    micro_batch_samples: int
    micro_batches: int
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    """Options as plain values; each strategy parses them into its own record."""

    def __post_init__(self) -> None:
        positive("problem", micro_batch_samples=self.micro_batch_samples, micro_batches=self.micro_batches)
        not_negative("problem", seed=self.seed)
