"""Documents laid end to end and cut into blocks of equal length."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fleetune.data.encoders import IDS, LABELS, MASK, causal_labels
from fleetune.data.folder import Array
from fleetune.data.needs import InputNeeds
from fleetune.data.tokens import Ids, check_ids, document


def pack(tokenizer: Any, texts: Iterator[str], length: int, limit: int | None, needs: InputNeeds) -> dict[str, Array]:
    """input_ids, attention_mask and labels [blocks, length] of the documents in their order.

    Stops once `limit` blocks are full, so a small sample does not tokenize everything; only the last block of all
    is padded. Keeps the blocks in memory: the packed set is the standard library, 50 MB at most.
    """
    wanted = None if limit is None else limit * length
    pieces: list[Ids] = []
    tokens = 0
    for text in texts:
        piece = document(tokenizer, text)
        check_ids(piece, needs)
        pieces.append(piece)
        tokens += len(piece)
        if wanted is not None and tokens >= wanted:
            break
    line = np.concatenate(pieces)[:wanted]
    blocks = -(-len(line) // length)
    padded = np.full(blocks * length, tokenizer.pad_token_id, dtype=np.int64)
    padded[: len(line)] = line
    ids: Ids = padded.reshape(blocks, length)
    mask: Ids = (np.arange(blocks * length) < len(line)).astype(np.int64).reshape(blocks, length)
    return {IDS: ids, MASK: mask, LABELS: causal_labels(ids, mask)}
