"""Writes the arrays of causal-lm where rows are no plain texts: chats, completions, and documents cut into blocks."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fleetune.contracts.input_spec import IGNORE_INDEX
from fleetune.contracts.task import Progress
from fleetune.data.chat_tokens import SequenceEncoder, TokenSequence
from fleetune.data.dialogues import Chat
from fleetune.data.examples import dialogue_format, examples, survey_tables
from fleetune.data.job import Job, Written, assign_rows, column_notes, placed_examples, saved_tokenizer, survey
from fleetune.data.messages import ASSISTANT, DEVELOPER, SYSTEM
from fleetune.data.prepared_data import IDS, POSITIONS, Array, SplitInfo, create_arrays
from fleetune.data.public_words import Told
from fleetune.data.sequences import fit, pack, pad
from fleetune.data.side_columns import SideColumns
from fleetune.data.splits import (
    TEST,
    TRAIN,
    VALIDATION,
    check_test_rows,
    overlap_notes,
    row_hash,
    shared_notes,
    split_rows,
)
from fleetune.data.tokenization import end_token_id, pack_documents, token_arrays, unknown_notes
from fleetune.data.written_chats import DATE, TELLS_DATE

REPORT_EVERY = 256
SEVERAL = 2
AFTER_END = 3
"""Tokens at the end of an answer among which its end mark is: a line break or two may follow it."""


def has_sequences(job: Job) -> bool:
    """True if rows are chats or completions, whose tokens do not all carry loss, or if samples share sequences."""
    if job.request.packing:
        return True
    return any(dialogue_format(table, job.source, job.spec) is not None for table in job.source.tables)


def write_sequences(job: Job) -> Written:
    """Write one sample per row, or several; what is too long is cut, and what carries no loss then is left out. Of a
    plain text that shares sequences, the rest is samples too.

    Holds all tokens in memory, 8 bytes each. Raises Refused if a split has nothing left.
    """
    request = job.request
    surveys = survey(job)
    rows_by_split, fewer = assign_rows(job, surveys)
    tokenizer = saved_tokenizer(job)
    encoder = SequenceEncoder(tokenizer, job.spec, request.loss_on == "all")
    found: dict[str, list[list[TokenSequence]]] = {name: [[]] * len(rows) for name, rows in rows_by_split.items()}
    total = sum(map(len, found.values()))
    chats, told, systems = False, list[str](), list[dict[str, str]]()
    for done, (split, position, example) in enumerate(placed_examples(job, rows_by_split), start=1):
        sequence, whole = encoder.encode(example), not (request.packing and isinstance(example.content, str))
        found[split][position] = [sequence] if whole else sequence.pieces(request.max_length)
        if split == TRAIN and isinstance(example.content, Chat) and len(systems) < SEVERAL:
            first = example.content.messages[0]
            role, said = str(first["role"]), str(first["content"])
            system = {"role": role, "content": said} if role in (SYSTEM, DEVELOPER) else {}
            systems += [system] if system not in systems else []
        if not chats and split == TRAIN and isinstance(example.content, Chat):
            chats, told = True, [*_dated(tokenizer, example.content), *_endless(tokenizer, example.content, sequence)]
        if done % REPORT_EVERY == 0 or done == total:
            job.progress("tokenizing", done, total, "samples")
    splits: list[SplitInfo] = []
    hashes: dict[str, list[bytes]] = {}
    notes = [*column_notes(surveys), *fewer, *told, *encoder.notes(total)]
    for name, sequences in found.items():
        fitted = fit([piece for pieces in sequences for piece in pieces], request.max_length)
        if not fitted.sequences:
            raise Told(
                "data: no {} sample has a token with loss within max_length {max_length} (the longest has {} "
                "tokens); set data.max_length to more",
                name,
                fitted.longest,
                max_length=request.max_length,
            )
        notes += fitted.note(name, request.max_length)
        if longer := sum(len(pieces) > 1 for pieces in sequences):
            notes.append(
                f"{longer} of {len(sequences)} {name} texts are longer than max_length {request.max_length}, and are "
                "read as several samples"
            )
        together = pack if request.packing else pad
        info, arrays = _write(job, name, together(fitted.sequences, request.max_length, int(tokenizer.pad_token_id)))
        notes += unknown_notes(tokenizer, arrays[IDS]) if name == TRAIN else ()
        splits.append(info)
        hashes[name] = [row_hash(sequence.ids.tobytes()) for sequence in fitted.sequences]
    for name in () if job.asked.local or request.only_tested else (TEST, VALIDATION):
        if name in hashes:  # of one split, equal samples are kept together, so that only cut ones are in both
            notes += shared_notes(hashes[TRAIN], hashes[name], None if job.source.test else 0, name)
    return Written(
        labels=(),
        splits=tuple(splits),
        pad_token_id=int(tokenizer.pad_token_id),
        notes=tuple(notes),
        chats=chats,
        systems=tuple(systems) if any(systems) and not job.asked.local else (),  # there, devices train
    )


def _dated(tokenizer: Any, chat: Chat) -> Iterator[str]:
    """A sentence if the chat template writes the date."""
    if TELLS_DATE.search(tokenizer.get_chat_template(tools=list(chat.tools) or None)):
        yield f"the chat template writes the date of the day, for which {DATE:%d %b %Y} stands in samples and prompts"


def _endless(tokenizer: Any, chat: Chat, sequence: TokenSequence) -> Iterator[str]:
    """A sentence if no special token is learned at the end of a chat's last answer."""
    learned = sequence.ids[sequence.labels != IGNORE_INDEX].tolist()
    added, last = set(tokenizer.get_added_vocab().values()), learned[-AFTER_END:]
    ends = [each for each in last if each in added and tokenizer.decode([each]).strip()]  # some are of white space
    if chat.messages[-1]["role"] == ASSISTANT and not ends and end_token_id(tokenizer) not in last:
        yield (
            "the chat template puts no special token of this tokenizer at the end of the answers that are learned, so "
            "the model does not learn to stop; name a template that does with data.chat_template"
        )


def write_documents(job: Job) -> Written:
    """Write blocks of concatenated documents; each document is in one split only."""
    source, request = job.source, job.request
    tokenizer = saved_tokenizer(job)
    texts = [str(one.content) for table in source.train for one in examples(table, source, job.spec)]
    beside = SideColumns(source, job.spec)
    keys = survey_tables(source.train, source, job.spec, job.progress, beside).content_keys
    splits, arrays, fewer = [], {}, tuple[str, ...]()
    limits = (request.train_samples, request.test_samples)
    dealt = (np.arange(len(texts)),) if job.asked.shared is not None else split_rows(request, keys, job.seed)
    for name, rows, limit in zip((TRAIN, TEST), dealt, limits, strict=False):
        reading = _with_progress((texts[row] for row in rows), len(rows), job.progress)
        blocks = pack_documents(tokenizer, reading, request.max_length, limit, job.spec)
        if name == TEST:
            fewer = check_test_rows(request, len(next(iter(blocks.values()))), held_out=True)
        split, arrays[name] = _write(job, name, blocks)
        splits.append(split)
    return Written(
        labels=(),
        splits=tuple(splits),
        pad_token_id=int(tokenizer.pad_token_id),
        notes=(*fewer, *(overlap_notes(arrays, None) if TEST in arrays and not job.asked.local else ())),
    )


def _write(job: Job, name: str, rows: Mapping[str, Array]) -> tuple[SplitInfo, dict[str, Array]]:
    """Write the rows of a split, by name of their array."""
    samples = len(next(iter(rows.values())))
    described = token_arrays(samples, job.request.max_length, packed=POSITIONS in rows)
    split = SplitInfo(name=name, samples=samples, arrays=described)
    arrays = create_arrays(job.folder, split)
    for array_name, array in arrays.items():
        array[:] = rows[array_name]
    return split, arrays


def _with_progress(texts: Iterable[str], total: int, progress: Progress) -> Iterator[str]:
    for done, text in enumerate(texts):
        progress("tokenizing", done, total, "files")
        yield text
