"""Reads a device's own data at the device: `python -m fleetune.data.local_process --task FILE`.

Its messages are JSON lines on stdout: `progress`, then `digest`, `surveyed` or `prepared`, or `error`. They and the log
hold no sample.
"""

import argparse
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any

from fleetune import filesystem
from fleetune.contracts import json_io
from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.record import record
from fleetune.contracts.run_config import DataRequest
from fleetune.data import local_data
from fleetune.data.writer import Preparation, SharedChoices
from fleetune.errors import FleetuneError, TryAgain

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


def main() -> int:
    """Do the task and print its answer."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--task", type=Path, required=True)
    task = json_io.read(LocalTask, arguments.parse_args().task)
    answers: dict[str, Callable[[LocalTask], dict[str, Any]]] = {DIGEST: _digest, SURVEYED: _survey, PREPARED: _prepare}
    try:
        _send({"event": task.answer, **answers[task.answer](task)})
    except Exception as error:
        places = filesystem.folders(task.folder or None)
        known = error if isinstance(error, FleetuneError) else filesystem.disk_error(error, places)
        # An unknown error may quote a sample: only its type and place are told.
        said = local_data.without_quotes(str(known), task.request) if known else type(error).__name__
        sys.stderr.write("".join(traceback.format_tb(error.__traceback__)) + f"{type(error).__name__}\n")
        _send({"event": ERROR, "message": said[:2000]})
        return known.exit_code if known is not None else TryAgain.exit_code
    return 0


def _digest(task: LocalTask) -> dict[str, Any]:
    return {"digest": local_data.report_digest(task.request, task.spec.task)}


def _survey(task: LocalTask) -> dict[str, Any]:
    plain: dict[str, Any] = json_io.dump(local_data.survey(task.request, task.spec, _progress))
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
    plain: dict[str, Any] = json_io.dump(local_data.prepare(asked, Path(task.folder)))
    return plain


def _progress(what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
    _send({"event": PROGRESS, "what": what, "done": done, "total": total, "unit": unit})


def _send(event: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
