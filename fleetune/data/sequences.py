"""Token sequences of any length as arrays of one length: cut, left out, padded or packed; what was cut, in words."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fleetune.contracts.input_spec import IGNORE_INDEX
from fleetune.data.chat_tokens import TokenSequence
from fleetune.data.prepared_data import IDS, LABELS, MASK, POSITIONS, Array


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


def pack(sequences: Sequence[TokenSequence], length: int, pad_token_id: int) -> dict[str, Array]:
    """Several sequences per row: input_ids, position_ids and labels, each [rows, length].

    Positions begin anew with each sequence, by which models keep them apart. The first token of a sequence carries no
    loss, since it would be predicted from the sequence before it. Padding has position 0.
    """
    rows = packed_rows([len(sequence.ids) for sequence in sequences], length)
    shape = (len(rows), length)
    ids, labels = np.full(shape, pad_token_id, dtype=np.int32), np.full(shape, IGNORE_INDEX, dtype=np.int32)
    positions = np.zeros(shape, dtype=np.int32)
    for row, members in enumerate(rows):
        first = 0
        for sequence in (sequences[member] for member in members):
            end = first + len(sequence.ids)
            ids[row, first:end], positions[row, first:end] = sequence.ids, np.arange(end - first)
            labels[row, first + 1 : end] = sequence.labels[1:]
            first = end
    return {IDS: ids, POSITIONS: positions, LABELS: labels}


def packed_rows(lengths: Sequence[int], length: int) -> list[list[int]]:
    """Numbers of the sequences in each row of `length` tokens: longest first, each into the fullest row with room.

    That wastes little: best fit decreasing needs at most 11/9 of the fewest rows, plus 4. Rows are in the order of
    their first sequence.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    """Distinct numbers of free tokens, ascending."""
    with_room: dict[int, list[int]] = {}
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        place = bisect_left(room, lengths[number])
        if place == len(room):
            row, free = len(rows), length
            rows.append([])
        else:
            free = room[place]
            row = with_room[free].pop()
            if not with_room[free]:
                del with_room[room.pop(place)]
        rows[row].append(number)
        left = free - lengths[number]
        if left not in with_room:
            with_room[left] = []
            insort(room, left)
        with_room[left].append(row)
    return sorted(sorted(row) for row in rows)
