"""The prepared model without its weights, made once for all workers that are forked from one server.

A worker's first model costs it 0.3 s of processor time, most of it in PEFT's and transformers' first calls.
"""

from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.run_config import ModelRequest
from fleetune.models.skeleton import base_skeleton
from fleetune.training.worker_state import ModelDescription

_MADE: dict[tuple[str, str], ModelDescription] = {}


def described(folder: Path, request: ModelRequest) -> ModelDescription:
    """Return the model that was prepared in a folder, which holds the same as long as this process lives."""
    return _MADE.setdefault((str(folder), json_io.text(request)), ModelDescription(folder, request))


def warm_up(folder: str, request: str) -> None:
    """Make what a worker needs of a model before it knows its part. request: a ModelRequest as JSON."""
    found = described(Path(folder), json_io.parse(ModelRequest, request, "model"))
    base_skeleton(found.config, found.request)
    _ = found.whole, found.state, found.tied, found.trainable, found.unit_items
