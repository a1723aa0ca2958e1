"""A stage's task file, and the protocol by which long work reports its progress."""

import json
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field
from typing import Any, Protocol

from fleetune.contracts.record import record

LOCAL_DATA = "local data"
"""Name of content outside the store: what devices report of data that stay on them."""
OUTLIVES_STAGE = "--outlives-stage"
"""Argument of a child process that its stage does not stop when it ends."""


@record
class RunFacts:
    """Facts about the run that a stage's report shows; no computation depends on them."""

    name: str = ""
    started: str = ""
    code_version: str = ""
    commit: str = ""
    """Git commit; empty outside a checkout."""
    dirty: bool = False
    settings: str = ""
    """The whole config, as YAML."""
    trained_on: int | str | None = None
    """Of the samples that are scored, those that the model was trained on, or why that is not known; None: the data are
    those of its training."""
    continued: bool = False
    """The model began as that of an earlier run, whose data are not compared with those that are scored."""

    def listed(self, run: str) -> dict[str, str]:
        """Label -> text of every fact that is known, for a report; `run` is the run's id."""
        edited = " with changes since" if self.dirty else ""
        named = {
            "run": run,
            "started": self.started,
            "code": f"fleetune {self.code_version}" if self.code_version else "",
            "commit": self.commit and self.commit + edited,
        }
        return {name: text for name, text in named.items() if text}


@record
class StageTask:
    """Everything a stage reads, started as `python -m stages.NAME --task task.json`.

    Folders are absolute paths on the machine that runs the stage.
    """

    stage: str
    run: str
    seed: int
    config: dict[str, Any]
    """The slice of the run's config that this stage reads."""
    inputs: dict[str, str]
    """kind of artifact -> read-only folder"""
    content: dict[str, str] = field(default_factory=dict)
    """name -> digest of content outside the store, as the stage's key has it; one that is absent is not checked."""
    output: str
    """Folder; the stage writes `output/KIND/...` for each artifact it makes."""
    work: str
    """Folder that outlives an interrupted attempt under the same key: checkpoints to resume from, logs."""
    earlier: tuple[str, ...] = ()
    """Work folders of unfinished attempts under other keys that this attempt may resume from."""
    cache: str = ""
    """Folder that outlives runs and keys, for results that hold under other inputs; it may not exist. Empty: none."""
    stored: dict[str, str] = field(default_factory=dict)
    """kind -> read-only folder of an earlier run's measurement, for stages that measure machines."""
    anew: bool = False
    """True to ignore cached measurements and replace them."""
    facts: RunFacts = RunFacts()


def message_of(line: str) -> dict[str, Any]:
    """Return the message of a line that a process has written.

    Empty for any other line, such as what a library prints, what a kill has cut off, or an amount that is no number.
    """
    try:
        found = json.loads(line)
        amounts = [float(found[name]) for name in ("done", "total") if name in found]
    except (ValueError, TypeError, RecursionError):
        return {}
    known = isinstance(found, dict) and isinstance(found.get("event"), str) and all(map(math.isfinite, amounts))
    return found if known else {}


class Progress(Protocol):
    """Callback of anything that may take longer than 2 s."""

    def __call__(self, what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
        """Report progress of `what` ("training"): `done` of `total` in `unit` ("samples"), with a changing `detail`
        ("loss 2.13")."""


def ignore_progress(what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
    """Discard the report."""


class StopRequest(Protocol):
    """The request that this process should end, for work which then still has something to keep."""

    @property
    def asked(self) -> bool:
        """True once somebody has asked for the end."""

    def deferred(self) -> AbstractContextManager[None]:
        """A context that a request does not interrupt: it only sets `asked`, and takes effect when the context ends."""


class NoStopRequest:
    """A request that nobody makes."""

    asked = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Do nothing."""
        yield
