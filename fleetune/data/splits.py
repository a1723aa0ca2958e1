"""Train and test splits: held-out rows, the seeded shuffle, overlap between the splits, and windows of the newest data.

A window is the last files of a folder by name, with a split that no other window contradicts.
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fleetune.contracts.run_config import NO_FILES, DataRequest
from fleetune.data.prepared_data import DECODER_IDS, LABELS, Array
from fleetune.data.public_words import Told
from fleetune.errors import Refused

RowIndices = np.ndarray[Any, np.dtype[np.int64]]
TRAIN, TEST, VALIDATION = "train", "test", "validation"
TEST_NAMES = ("test", "validation", "valid", "val", "dev", "eval")
"""Names of test splits; the first that a source has is tested on, and of one with `test` the next is `VALIDATION`."""
SPLIT_WORDS = {
    **{name: name for name in (TRAIN, *TEST_NAMES)},
    "training": TRAIN,
    "testing": TEST,
    "evaluation": "eval",
}
"""Word in the name of a file or folder -> the split that it names; those of the `datasets` package."""
NUMBERS = re.compile(r"(\d+)")
NO_LETTERS = re.compile(r"[\W\d_]+")
CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
JOINED = re.compile(r"^(train|test|valid)|(train|test|valid)$|^(val|dev|eval)(?=set|data|split|file)")


def split_names(name: str) -> frozenset[str]:
    """The splits that the name of a file or folder has as words, between anything but letters: `imdb_train-2.jsonl`."""
    return frozenset(SPLIT_WORDS[word] for word in NO_LETTERS.split(name.lower()) if word in SPLIT_WORDS)


def joined_names(name: str) -> frozenset[str]:
    """The splits that a name has or may mean by a word that is joined to another: `trainset`, `imdbTest`."""
    words = {*NO_LETTERS.split(CAPITAL.sub(" ", name).lower())}
    joined = {next(filter(None, found.groups())) for word in words if (found := JOINED.search(word))}
    return split_names(" ".join({*joined, *words}))


def held_out_splits(names: Iterable[str]) -> tuple[str, str]:
    """The split that is tested on, and beside `test` the one that states are chosen by while training; empty for none.

    names: test splits that can be read, in the order of TEST_NAMES.
    """
    found = iter(names)
    tested = next(found, "")
    return tested, next(found, "") if tested == TEST else ""


def unread_notes(source: str, names: Iterable[str], tested: str, chooses: str = "") -> tuple[str, ...]:
    """A sentence that names the splits of a source that are not read; empty if there is none."""
    unread = [name for name in names if name not in (TRAIN, tested, chooses)]
    if not unread:
        return ()
    read = f"{tested} is tested on" if tested else f"{TRAIN} is read"
    read += f", {chooses} is scored while training" if chooses else ""
    return (f"of the splits of {source}, {read}; not read: {', '.join(unread)}",)


def split_rows(
    request: DataRequest, keys: np.ndarray[Any, np.dtype[np.uint64]], seed: int
) -> tuple[RowIndices, RowIndices]:
    """Split rows by test_fraction and return (train, test) row indices, each shuffled.

    Rows with equal `keys` [rows] are the same sample and stay in one split, so no test sample is a training sample. A
    sample with more than half as many rows as are to be held out is trained on, where there are enough others.
    With `by_content`, a row's split depends on its content and not on the other rows.
    Raises Refused if there are too few distinct samples to hold one out.
    """
    _, groups = np.unique(keys, return_inverse=True)
    distinct = int(groups.max(initial=-1)) + 1
    if request.by_content and not request.only_tested:
        tested = held_out(keys, request.held_out_share, seed)
        if not tested.any() or tested.all():
            raise _too_few(request, distinct)
        return shuffled(np.flatnonzero(~tested), seed, TRAIN), shuffled(np.flatnonzero(tested), seed, TEST)
    order = np.argsort(_rng(seed, "hold out").permutation(distinct)[groups], kind="stable")
    fit, border = _fit_to_test(np.bincount(groups), held_out_count(len(keys), request.held_out_share))
    order = order[np.argsort(~fit[groups[order]], kind="stable")]
    while 0 < border < len(order) and groups[order[border]] == groups[order[border - 1]]:
        border += 1
    if not 0 < border < len(order):
        raise _too_few(request, distinct)
    return shuffled(order[border:], seed, TRAIN), shuffled(order[:border], seed, TEST)


def _fit_to_test(sizes: RowIndices, border: int) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], int]:
    """Whether each sample is repeated little enough to be held out, and how many rows are: at most half of theirs."""
    fit, rows = np.ones(len(sizes), dtype=bool), border
    while rows and (large := fit & (sizes > max(1, rows // 2))).any():
        fit &= ~large
        rows = min(border, int(sizes[fit].sum()) // 2)
    return (fit, rows) if rows else (np.ones_like(fit), border)


def _too_few(request: DataRequest, distinct: int) -> Refused:
    return Told(
        "data: {named} has {} distinct sample(s), too few to hold some out for testing; give more, or a test split",
        distinct,
        named=request.named,
    )


def held_out_count(rows: int, fraction: float) -> int:
    """Minimum number of rows to hold out; duplicates of held-out rows come on top."""
    return min(max(1, round(rows * fraction)), rows - 1)


def check_test_rows(request: DataRequest, found: int, held_out: bool = False) -> tuple[str, ...]:
    """Raise Refused if the test split has fewer rows than `test_samples` requests; return a sentence instead where they
    are held out by content, by which nobody can ask for so many."""
    if request.test_samples is not None and found < request.test_samples:
        if held_out and request.by_content and not request.only_tested:
            return (f"test_samples asks for {request.test_samples} rows, and by their content {found} are held out",)
        raise Told(
            "data: test_samples asks for {test_samples} rows, but {named} has {} to test on; ask for at most {}, "
            "or give more",
            found,
            found,
            test_samples=request.test_samples,
            named=request.named,
        )
    return ()


def shuffled(numbers: RowIndices, seed: int, split: str) -> RowIndices:
    """Shuffle the row indices of a split by the seed, independently of the other split."""
    return _rng(seed, split).permutation(np.sort(numbers)).astype(np.int64)


def _rng(seed: int, use: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, *use.encode()]))


def overlap_notes(
    arrays: Mapping[str, Mapping[str, Array]], alike: int | None = 0, split: str = TEST
) -> tuple[str, ...]:
    """Return a sentence that counts rows of a split with the same inputs as a training row; empty if there is none.

    `arrays` are the stored inputs by split; `alike` is the number of rows of the split that equalled a
    training row before truncation or resizing, None where that is unknown.
    """
    hashes = _row_hashes(arrays[TRAIN]), _row_hashes(arrays[split])
    if DECODER_IDS in arrays[TRAIN]:  # what is written may differ
        return shared_notes(*hashes, None, split, "have the input of a training row")
    return shared_notes(*hashes, alike, split)


def shared_notes(
    train: list[bytes], tested: list[bytes], alike: int | None, split: str = TEST, how: str = "are also training rows"
) -> tuple[str, ...]:
    """`overlap_notes` from the hashes of the rows of both splits; one more sentence if most of those that are scored
    are alike."""
    return (*_shared_note(train, tested, alike, split, how), *_repeated_note(tested, split))


def _repeated_note(tested: list[bytes], split: str) -> Iterator[str]:
    most = max(Counter(tested).values(), default=0)
    if 1 < most > len(tested) / 2:
        yield f"{most} of {len(tested)} {split} rows are alike, so {_scores(split, 'the')} are mostly of one input"


def _shared_note(train: list[bytes], tested: list[bytes], alike: int | None, split: str, how: str) -> tuple[str, ...]:
    trained = set(train)
    shared = sum(key in trained for key in tested)
    if not shared:
        return ()
    what = "what it is tested on" if split == TEST else "them"
    note = (
        f"{shared} of {len(tested)} {split} rows {how}: the model has seen {what}, so {_scores(split)} look better "
        "than they are"
    )
    cut = 0 if alike is None else shared - alike
    if cut <= 0:
        return (note,)
    which = "these rows differ" if cut == shared else f"{cut} of these rows differ{'s' if cut == 1 else ''}"
    return (f"{note}; {which} in the source, and became equal when long texts were cut or images resized",)


def _scores(split: str, whose: str = "its") -> str:
    return f"{whose} scores" if split == TEST else "scores while it trains (training.evaluate_every_rounds)"


def _row_hashes(split: Mapping[str, Array]) -> list[bytes]:
    """Hash of each row's inputs."""
    inputs = [array for name, array in sorted(split.items()) if name not in (LABELS, DECODER_IDS)]
    rows = range(len(inputs[0]))
    return [row_hash(b"".join(array[row].tobytes() for array in inputs)) for row in rows]


def row_hash(content: bytes) -> bytes:
    """64-bit hash of a row's inputs."""
    return hashlib.blake2b(content, digest_size=8).digest()


Keys = np.ndarray[Any, np.dtype[np.uint64]]


def check_has_files(request: DataRequest, has_files: bool) -> None:
    """Refuse `newest_files` for a source that is not a folder of data files."""
    if request.newest_files is not None and not has_files:
        raise Refused(NO_FILES.format(newest_files=request.newest_files, source=request.source))


def newest(request: DataRequest, splits: Mapping[str, tuple[Path, ...]]) -> dict[str, tuple[Path, ...]]:
    """The files by split, of the train split only the last `newest_files` by name; test files stay as they are.

    Numbers in names count as such: day-10 is newer than day-9. Raises Refused for files in several folders, unless the
    names of all folders have numbers (2026/11), if their names and their folders disagree on which files are newest.
    """
    if request.newest_files is None or TRAIN not in splits:  # all may be tested on
        return dict(splits)
    ordered = sorted(splits[TRAIN], key=lambda file: [_in_order(part) for part in file.parts])
    kept = ordered[-request.newest_files :]
    by_name = sorted(ordered, key=lambda file: _in_order(file.name))[-request.newest_files :]
    below = os.path.commonpath([file.parent for file in ordered])
    dated = all(NUMBERS.search(part) for file in ordered for part in file.relative_to(below).parts[:-1])
    if not dated and (unlike := sorted({*by_name} - {*kept})):
        raise Told(
            "data: newest_files: it is not clear whether {} or {} is newer, which lie in folders without a date; keep "
            "the files in one folder, or name all folders by date",
            unlike[0],
            next(file for file in kept if file not in by_name),
        )
    return {**splits, TRAIN: tuple(sorted(kept))}


def _in_order(name: str) -> tuple[list[str | int], str]:
    """Sorts names by the numbers in them."""
    return [int(part) if part.isdecimal() else part for part in NUMBERS.split(name)], name


def held_out(keys: Keys, fraction: float, seed: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether each row is held out for testing, about `fraction` of them, decided by its content and the seed alone.

    A row that is trained on today is never what tomorrow's larger file, or another window, tests on, so that a model
    which goes on is not scored on what it has seen. `keys` are hashes of the rows' contents.
    """
    mixed = keys ^ np.random.Generator(np.random.PCG64([seed, *b"window"])).integers(1 << 63, dtype=np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64, a bijection
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    found: np.ndarray[Any, np.dtype[np.bool_]] = (mixed ^ (mixed >> np.uint64(31))) < np.uint64(int(fraction * 2**64))
    return found
