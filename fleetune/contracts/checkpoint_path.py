"""The path of a model or an adapter in a store, which holds the digest of its checkpoint."""

from pathlib import Path

from fleetune.contracts.run_config import ModelRequest

CHECKPOINT, MODEL, ADAPTER = "checkpoint", "model", "adapter"
ARTIFACTS = "artifacts"


def checkpoint_digest(path: str) -> str:
    """Digest in STORE/artifacts/checkpoint/DIGEST/model or .../adapter; empty for any other path."""
    place = Path(path)
    is_artifact = place.name in (MODEL, ADAPTER) and place.parts[-4:-2] == (ARTIFACTS, CHECKPOINT)
    return place.parent.name if is_artifact else ""


def is_continued(model: ModelRequest) -> bool:
    """True if a model starts from one that an earlier run trained, or its LoRA adapter is put on such a one."""
    return any(checkpoint_digest(path or "") for path in (model.source, model.lora and model.lora.start))
