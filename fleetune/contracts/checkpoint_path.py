"""The path of a model or an adapter in a store, which holds the digest of its checkpoint."""

from pathlib import Path

from fleetune.contracts.run_config import ModelRequest

CHECKPOINT, MODEL, ADAPTER = "checkpoint", "model", "adapter"
ARTIFACTS = "artifacts"
CARD, RECEIPT = "README.md", "## Receipt"
"""The card of an exported model, and the heading in it under which its run's receipt stands."""


def checkpoint_digest(path: str) -> str:
    """Digest in STORE/artifacts/checkpoint/DIGEST/model or .../adapter; empty for any other path."""
    place = Path(path)
    is_artifact = place.name in (MODEL, ADAPTER) and place.parts[-4:-2] == (ARTIFACTS, CHECKPOINT)
    return place.parent.name if is_artifact else ""


def is_continued(model: ModelRequest) -> bool:
    """True if a model starts from one that an earlier run trained, or its LoRA adapter is put on such a one: one in a
    store, or a folder with the card of an exported one."""
    starts = [path for path in (model.source, model.lora and model.lora.start) if path]
    return any(checkpoint_digest(path) or _has_receipt(Path(path)) for path in starts)


def _has_receipt(folder: Path) -> bool:
    try:
        return RECEIPT in (folder / CARD).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return False
