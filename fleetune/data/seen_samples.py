"""Test samples that a model was trained on, by the inputs in prepared data."""

from collections.abc import Iterator

from fleetune.contracts.task import Progress, ignore_progress
from fleetune.data.prepared_data import DECODER_IDS, IDS, LABELS, POSITIONS, PreparedData, sample_spans
from fleetune.data.splits import TEST, TRAIN, row_hash

CHUNK_ROWS = 512
DOCUMENTS = "stdlib-sources"
"""The source that is cut into blocks."""


def seen_samples(trained: PreparedData, scored: PreparedData, progress: Progress = ignore_progress) -> int | str:
    """Number of rows of the test split of `scored` whose inputs a model has seen that was trained on `trained`, or why
    nobody can tell. Of rows that samples share, one such sample is enough."""
    if trained.info.local is not None:
        return "it was trained on data that stay on devices"
    if trained.folder != scored.folder and DOCUMENTS in (trained.info.source, scored.info.source):
        return "documents were cut into blocks"
    inputs, others = _inputs(scored, TEST), _inputs(trained, TRAIN)
    if any(others.get(name) != shape for name, shape in inputs.items()):
        return "it was trained on samples of another length or size"
    rows, done = trained.size(TRAIN) + scored.size(TEST), 0
    tested: list[list[bytes]] = []
    known, seen = set[bytes](), set[bytes]()  # only of what is tested on: much more may be trained on
    for data, split in ((scored, TEST), (trained, TRAIN)):
        for hashes in _hashes(data, split, tuple(inputs)):
            if split == TEST:
                tested.append(hashes)
                known.update(hashes)
            else:
                seen.update(known.intersection(hashes))
            done += 1
            if done % CHUNK_ROWS == 0 or done == rows:
                progress("looking for samples that were trained on", done, rows, "samples")
    return sum(not seen.isdisjoint(hashes) for hashes in tested)


def _inputs(data: PreparedData, split: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Array that the model reads -> its numbers and the shape of a row."""
    arrays = next(one.arrays for one in data.info.splits if one.name == split)
    return {one.name: (one.dtype, one.shape[1:]) for one in arrays if one.name not in (LABELS, DECODER_IDS)}


def _hashes(data: PreparedData, split: str, names: tuple[str, ...]) -> Iterator[list[bytes]]:
    """Hashes of the inputs of each row: of several where samples share it."""
    for first in range(0, data.size(split), CHUNK_ROWS):
        chunk = range(first, min(first + CHUNK_ROWS, data.size(split)))
        arrays = data.rows(split, chunk, names)
        for row in range(len(chunk)):
            if POSITIONS in arrays:
                spans = sample_spans(arrays[POSITIONS][row])
                yield [row_hash(arrays[IDS][row, start:end].tobytes()) for start, end in spans]
            else:
                yield [row_hash(b"".join(arrays[name][row].tobytes() for name in sorted(arrays)))]
