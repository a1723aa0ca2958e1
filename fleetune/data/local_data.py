"""Data that lie on a device and stay there: what the device reports of them, and their preparation.

What leaves the device: the digest of the source, the number of samples, how many of them are cut, and the names of the
labels, on which all devices must agree. Errors are told in words that come out of no sample (`public_words`).

`python -m fleetune.data.local_data --task FILE` reads a device's own data at the device. Its messages are JSON lines on
stdout: `progress`, then `digest`, `surveyed` or `prepared`, or `error`. They and the log hold no sample.
"""

import argparse
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fleetune import filesystem
from fleetune.contracts import json_io
from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.record import record
from fleetune.contracts.run_config import DataRequest
from fleetune.contracts.task import Progress, ignore_progress
from fleetune.contracts.tasks import SEQ2SEQ, predicts_labels, predicts_number
from fleetune.data.examples import RawLabel, Survey, check_task, survey_tables
from fleetune.data.job import Preparation, SharedChoices
from fleetune.data.labels import is_whole_number, spell_labels
from fleetune.data.prepared_data import PIXELS, LocalSource, PreparedData
from fleetune.data.public_words import Told, ToldAgain, public_words
from fleetune.data.side_columns import SideColumns
from fleetune.data.sources import checked_digest, content_digest, open_source, validate_data
from fleetune.data.writer import ensure_data
from fleetune.errors import FleetuneError, Refused, TryAgain

COUNTS = re.compile(
    r"\d+ of \d+ (rows|pairs|(train )?texts|train samples) (are longer|are left out|have a text longer)"
    r"([a-z_ \d,:;]|\d\.\d%|data\.packing)+"
)
"""Notes on what is cut or left out, which hold words of ours and numbers alone."""
LONGEST = re.compile(r" \(the longest has \d+ tokens\)")
"""Tells of a single sample."""
LONGEST_LABEL = 64
"""Characters of a label's name; a longer one is taken for a sample's text."""
LEAST_ROWS = 2
"""Rows of a label that only this device has; the name of a label of one row may say all of it."""


@record
class LocalSurvey:
    """What a device reports of its data before they are prepared."""

    digest: str
    samples: int
    """Rows, or documents of packed text."""
    labels: tuple[str, ...]
    """Names of the labels; empty for causal-lm."""


def report_digest(request: DataRequest, task: str) -> str:
    """Return the content digest of a source that can serve the task. Refused: it cannot."""
    validate_data(replace(request, test_samples=None), task)
    return content_digest(request, images=not InputSpec(task=task).is_text)


def public_labels(request: DataRequest, spec: InputSpec) -> tuple[str, ...]:
    """Return the names of the labels of data.source."""
    if spec.task == "causal-lm":
        return ()
    source = open_source(replace(request, local={}), spec.task)
    check_task(request, source, spec)
    found = survey_tables(source.tables, source, spec, ignore_progress, SideColumns(source, spec))
    return tuple(dict.fromkeys(spell_labels(frozenset(found.labels), source).values()))


def survey(
    request: DataRequest, spec: InputSpec, progress: Progress, known_labels: Collection[str] = ()
) -> LocalSurvey:
    """Read and validate every training row. Refused: unsuitable rows; Told: labels that look like samples.

    known_labels: those of data.source.
    """
    if predicts_labels(spec.task) or predicts_number(spec.task) or spec.task == SEQ2SEQ:
        raise Told(
            "data.local: {task} cannot be learned from data that stay on devices; give data.source", task=spec.task
        )
    images = not spec.is_text
    digest = content_digest(request, images)
    source = open_source(request, spec.task)
    check_task(request, source, spec)
    found = survey_tables(source.train, source, spec, progress, SideColumns(source, spec))
    found.beside.check()
    names: tuple[str, ...] = ()
    if spec.task != "causal-lm":
        spelled = spell_labels(frozenset(found.labels), source)
        names = tuple(dict.fromkeys(name for label, name in spelled.items() if label in found.labels))
        _check_labels(source.label_column, found, spelled, known_labels)
    return LocalSurvey(digest=checked_digest(request, digest, images), samples=len(found.content_keys), labels=names)


def prepare(asked: Preparation, folder: Path) -> LocalSource:
    """Write the arrays of a device's data into a folder of its own, unless they are there whole.

    Returns what may be reported, with an empty device. Refused: images of another shape than all have agreed on.
    """
    assert asked.shared is not None and asked.expected_digest is not None, "all devices have been surveyed"
    digest = content_digest(asked.request, images=not asked.spec.is_text)
    if digest != asked.expected_digest:
        raise ToldAgain("its data were changed after this run surveyed them; start the run again")
    ensure_data(asked, folder)
    data = PreparedData(folder)
    shapes = {array.shape[-2:] for split in data.info.splits for array in split.arrays if array.name == PIXELS}
    if shapes - {asked.shared.image_shape}:
        sizes = ", ".join(" x ".join(map(str, shape)) for shape in (*shapes, asked.shared.image_shape))
        raise Told(
            "its images and those of data.source have different sizes: {sizes}; set data.image_size", sizes=sizes
        )
    cut = tuple(told for note in data.info.notes if COUNTS.fullmatch(told := LONGEST.sub("", note)))
    return LocalSource(device="", digest=digest, samples=data.size("train"), cut=cut)


def check_agreement(labels: dict[str, tuple[str, ...]]) -> None:
    """Refuse labels that are whole numbers in one source and words in another. labels: by source."""
    numbers = {source: all(map(is_whole_number, names)) for source, names in labels.items() if names}
    if len(set(numbers.values())) > 1:
        first, other = (next(s for s, found in numbers.items() if found == kind) for kind in (True, False))
        raise Refused(f"labels of {first} are whole numbers and those of {other} are words; spell all labels alike")


def told(error: BaseException, request: DataRequest) -> str:
    """Return what may leave the device of an error's message, after the name of the file that the run itself gives."""
    file = Path(request.source)
    return f"{file.name}: {public_words(error)}" if file.suffix else public_words(error)


def _check_labels(column: str, found: Survey, names: Mapping[RawLabel, str], known: Collection[str]) -> None:
    """Refuse labels that are as good as samples, because their names leave the device.

    known: names of the labels of data.source, which everybody has.
    """
    own = {label: names[label] for label in found.labels if names[label] not in known}
    longest = max(map(len, own.values()), default=0)
    rows = np.bincount(found.label_indices, minlength=len(found.labels))
    single = sum(1 for number, label in enumerate(found.labels) if label in own and rows[number] < LEAST_ROWS)
    if longest > LONGEST_LABEL or single:
        raise Told(
            "column {column!r} has {own} labels that data.source does not have, {single} of them in a single row of "
            "{rows}, the longest of {longest} characters. Names of labels leave the device, so they may have at most "
            "{most} characters, and {least} rows each at least; leave rare ones out, have a row of each in "
            "data.source, or choose another data.label_column",
            column=column,
            own=len(own),
            single=single,
            rows=len(found.content_keys),
            longest=longest,
            most=LONGEST_LABEL,
            least=LEAST_ROWS,
        )


DIGEST, SURVEYED, PREPARED, PROGRESS, ERROR = "digest", "surveyed", "prepared", "progress", "error"


@record
class LocalTask:
    """The task of a device that reads its own data."""

    answer: str
    """The message that is asked for: `digest`, `surveyed` or `prepared`."""
    request: DataRequest
    """Its `source` is on the device."""
    spec: InputSpec
    seed: int = 0
    digest: str = ""
    """Of `prepared`: the digest that was surveyed."""
    label_ids: dict[str, int] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    image_shape: tuple[int, int] = (0, 0)
    folder: str = ""
    """Of `prepared`: the folder of the device's own for the arrays."""
    known_labels: tuple[str, ...] = ()
    """Of `surveyed`: names of the labels of data.source."""


def main() -> int:
    """Do the task and print its answer."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--task", type=Path, required=True)
    task = json_io.read(LocalTask, arguments.parse_args().task)
    answers: dict[str, Callable[[LocalTask], dict[str, Any]]] = {DIGEST: _digest, SURVEYED: _survey, PREPARED: _prepare}
    log = _silenced()
    try:
        _send({"event": task.answer, **answers[task.answer](task)})
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a library's panic is no Exception
        places = filesystem.folders(task.folder or None)
        disk = None if isinstance(error, FleetuneError) else filesystem.disk_error(error, places)
        trace = "".join(traceback.format_tb(error.__traceback__))
        os.write(log, f"{trace}{type(error).__name__}\n".encode())
        _send({"event": ERROR, "message": (told(error, task.request) if disk is None else str(disk))[:2000]})
        known = error if isinstance(error, FleetuneError) else disk
        return TryAgain.exit_code if known is None else known.exit_code
    return 0


def _silenced() -> int:
    """Let nothing that a library writes reach the log, which leaves the device; return what writes to it."""
    log = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    return log


def _digest(task: LocalTask) -> dict[str, Any]:
    return {"digest": report_digest(task.request, task.spec.task)}


def _survey(task: LocalTask) -> dict[str, Any]:
    plain: dict[str, Any] = json_io.dump(survey(task.request, task.spec, _progress, task.known_labels))
    return plain


def _prepare(task: LocalTask) -> dict[str, Any]:
    shared = SharedChoices(label_ids=task.label_ids, labels=task.labels, image_shape=task.image_shape)
    asked = Preparation(
        request=task.request,
        spec=task.spec,
        seed=task.seed,
        progress=_progress,
        expected_digest=task.digest,
        shared=shared,
    )
    plain: dict[str, Any] = json_io.dump(prepare(asked, Path(task.folder)))
    return plain


def _progress(what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
    _send({"event": PROGRESS, "what": what, "done": done, "total": total, "unit": unit})


def _send(event: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
