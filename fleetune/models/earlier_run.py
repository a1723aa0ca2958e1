"""Models that an earlier run trained, by their place in a store or their card."""

from contextlib import suppress
from pathlib import Path

from fleetune.contracts.checkpoint_path import CARD, RECEIPT, checkpoint_digest
from fleetune.contracts.run_config import ModelRequest


def is_continued(request: ModelRequest) -> bool:
    """True if a model starts from one that an earlier run trained, or its LoRA adapter is put on such a one: one in a
    store, or with the card of an exported one, in a folder or on the hub."""
    starts = [path for path in (request.source, request.lora and request.lora.start) if path]
    cards = [Path(path) / CARD for path in starts]
    if request.source is not None and request.revision is not None:
        from huggingface_hub import try_to_load_from_cache

        with suppress(ValueError):  # no name of the hub: a folder has no revision, as whoever reads it says
            kept = try_to_load_from_cache(request.source, CARD, revision=request.revision)
            cards += [Path(kept)] if isinstance(kept, str) else []
    return any(map(checkpoint_digest, starts)) or any(map(_has_receipt, cards))


def _has_receipt(card: Path) -> bool:
    try:
        return RECEIPT in card.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return False
