"""The store of artifacts and run records: content-addressed, written atomically, on a folder or any fsspec URL.

An artifact exists once its manifest does, which is written last. A key record maps a stage key to its artifacts and is
written after all of them; a run record lists the keys of a run's stages. Rejected: Prefect's result store (results are
keyed by task, not by content) and DVC (a working tree per version).
"""

from fleetune.store.lock import Lock
from fleetune.store.manifest import KeyRecord, Manifest
from fleetune.store.promotions import PromotionDecision, PromotionRegistry
from fleetune.store.runs import RunRecord, RunRegistry, StageRecord
from fleetune.store.stage_key import Ingredients, changes, stage_key
from fleetune.store.store import Store

__all__ = [
    "PromotionDecision",
    "Ingredients",
    "KeyRecord",
    "Lock",
    "Manifest",
    "PromotionRegistry",
    "RunRegistry",
    "RunRecord",
    "StageRecord",
    "Store",
    "changes",
    "stage_key",
]
