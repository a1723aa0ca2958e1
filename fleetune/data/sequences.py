"""Token sequences of any length as arrays of one length: cut, left out, padded; and what was cut, in words."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fleetune.contracts.input_spec import IGNORE_INDEX
from fleetune.data.chat_tokens import TokenSequence
from fleetune.data.prepared_data import IDS, LABELS, MASK, Array


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """The sequences of a split that fit into a length and carry loss, and what became of the others."""

    sequences: tuple[TokenSequence, ...]
    longer: int
    """Number of sequences that were cut."""
    longest: int
    """Tokens of the longest before it was cut."""
    left_out: int
    """Number of sequences of which nothing that carries loss is left."""

    def note(self, split: str, length: int) -> tuple[str, ...]:
        """A sentence on what was cut and left out; empty if nothing was."""
        total = len(self.sequences) + self.left_out
        said = []
        if self.longer:
            said.append(
                f"{self.longer} of {total} {split} samples are longer than max_length {length} and are cut "
                f"(the longest has {self.longest} tokens)"
            )
        if self.left_out:
            said.append(f"{self.left_out} of {total} {split} samples are left out, because no token with loss remains")
        return ("; ".join(said),) if said else ()


def fit(sequences: Sequence[TokenSequence], length: int) -> Fitted:
    """Cut sequences at their end to at most `length` tokens, and leave out those that carry no loss."""
    cut = [sequence.first(length) for sequence in sequences]
    kept = tuple(sequence for sequence in cut if sequence.targets)
    lengths = [len(sequence.ids) for sequence in sequences]
    return Fitted(
        sequences=kept,
        longer=sum(tokens > length for tokens in lengths),
        longest=max(lengths, default=0),
        left_out=len(cut) - len(kept),
    )


def pad(sequences: Sequence[TokenSequence], length: int, pad_token_id: int) -> dict[str, Array]:
    """One sequence per row: input_ids, attention_mask and labels, each [sequences, length]."""
    shape = (len(sequences), length)
    ids, labels = np.full(shape, pad_token_id, dtype=np.int32), np.full(shape, IGNORE_INDEX, dtype=np.int32)
    mask = np.zeros(shape, dtype=np.uint8)
    for row, sequence in enumerate(sequences):
        tokens = len(sequence.ids)
        ids[row, :tokens], labels[row, :tokens], mask[row, :tokens] = sequence.ids, sequence.labels, 1
    return {IDS: ids, MASK: mask, LABELS: labels}
