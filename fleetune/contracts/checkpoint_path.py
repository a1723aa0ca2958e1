"""The path of a model or an adapter in a store, which holds the digest of its checkpoint."""

from pathlib import Path

CHECKPOINT, MODEL, ADAPTER = "checkpoint", "model", "adapter"
ARTIFACTS = "artifacts"
CARD, RECEIPT = "README.md", "## Receipt"
"""The card of an exported model, and the heading in it under which its run's receipt stands."""


def checkpoint_digest(path: str) -> str:
    """Digest in STORE/artifacts/checkpoint/DIGEST/model or .../adapter; empty for any other path."""
    place = Path(path)
    is_artifact = place.name in (MODEL, ADAPTER) and place.parts[-4:-2] == (ARTIFACTS, CHECKPOINT)
    return place.parent.name if is_artifact else ""
