"""Decisions about trained models: `promotions/NAME/000001.json`, one file for each, never changed afterwards.

A decision is written whole or not at all, and under a lock, so that two runs that end at once are decided in order.
"""

from dataclasses import replace

from fleetune.contracts import json_io
from fleetune.contracts.metrics import Score
from fleetune.contracts.record import check_name, record
from fleetune.errors import Refused
from fleetune.store.manifest import check_artifacts
from fleetune.store.storage import Storage

FOLDER = "promotions"


@record
class PromotionDecision:
    """What became of one trained model."""

    name: str
    """Name of the config."""
    number: int = 0
    """1 for the first decision of the name; the registry gives it."""
    run: str
    promoted: bool
    checkpoint: str
    """Digest of the checkpoint that the run trained."""
    start: str = ""
    """Digest of the promoted checkpoint that it started from; empty when it started from the model of its config."""
    origin: str
    """Digest of the `model` section that the first of these checkpoints was trained from."""
    data: str
    """Digest of the prepared data that it was trained and tested on."""
    scores: tuple[Score, ...]
    """On the test data, before and after training."""
    why: str
    decided: str
    """Time in ISO 8601, UTC."""

    def __post_init__(self) -> None:
        check_name("promotion", self.name)
        check_name(f"promotion of {self.name}", self.run)
        digests = {"checkpoint": self.checkpoint, "data": self.data, **({"start": self.start} if self.start else {})}
        check_artifacts(f"promotion of {self.run}", digests)


class PromotionRegistry:
    """The decisions of one store."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def names(self) -> list[str]:
        """Names of the configs about whose models something was decided."""
        return self._storage.names(FOLDER)

    def history(self, name: str) -> tuple[PromotionDecision, ...]:
        """All decisions about a config's models, oldest first. Refused: a file that is not a decision."""
        return tuple(self._read(f"{FOLDER}/{name}/{file}") for file in self._storage.names(f"{FOLDER}/{name}"))

    def promoted(self) -> tuple[PromotionDecision, ...]:
        """Every promotion of every config, newest first."""
        found = [decision for name in self.names() for decision in self.history(name) if decision.promoted]
        return tuple(sorted(found, key=lambda decision: (decision.decided, decision.number), reverse=True))

    def last(self, name: str, origin: str) -> PromotionDecision | None:
        """The newest promotion of a config name whose first model was `origin`."""
        found = [one for one in self.history(name) if one.promoted and one.origin == origin]
        return found[-1] if found else None

    def origin(self, name: str, checkpoint: str) -> str:
        """The origin of a checkpoint that was promoted; empty for any other checkpoint."""
        found = (one.origin for one in self.history(name) if one.promoted and one.checkpoint == checkpoint)
        return next(found, "")

    def of_run(self, name: str, run: str) -> PromotionDecision | None:
        """The decision about a run; None while there is none."""
        return next((one for one in self.history(name) if one.run == run), None)

    def append(self, decision: PromotionDecision) -> PromotionDecision:
        """Write a decision after all others of its name; returns it with its number. The caller holds the lock."""
        before = self.history(decision.name)
        numbered = replace(decision, number=before[-1].number + 1 if before else 1)
        path = f"{FOLDER}/{decision.name}/{numbered.number:06}.json"
        self._storage.write(path, json_io.text(numbered).encode())
        return numbered

    def _read(self, path: str) -> PromotionDecision:
        content = self._storage.read(path)
        if content is None:
            raise Refused(f"{path}: it was deleted while it was read; try again")
        return json_io.parse(PromotionDecision, content, path)
