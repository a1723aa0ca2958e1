"""Where artifacts and run records live: content-addressed, written whole or not at all, on a folder or any fsspec URL.

An artifact exists when its manifest does, and the manifest is the last thing written. A key record says which
artifacts a stage key stands for and is written after all of them; a run record says which keys a run went through.
May import contracts and errors. Set aside: Prefect's result store (its results are keyed by task, not by content) and
DVC (a working tree per version).
"""

from fleetune.store.key import Ingredients, changes, stage_key
from fleetune.store.lock import Lock
from fleetune.store.records import KeyRecord, Manifest, RunRecord, StageRecord
from fleetune.store.runs import RunBook
from fleetune.store.store import Store

__all__ = [
    "Ingredients",
    "KeyRecord",
    "Lock",
    "Manifest",
    "RunBook",
    "RunRecord",
    "StageRecord",
    "Store",
    "changes",
    "stage_key",
]
