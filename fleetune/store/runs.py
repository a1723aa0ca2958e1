"""Run records: `runs/RUN_ID/run.json`, replaced atomically at every change. Times are ISO 8601 in UTC."""

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fleetune.contracts import json_io
from fleetune.contracts.record import NAME, check_name, distinct, one_of, record
from fleetune.contracts.run_config import RunConfig
from fleetune.contracts.training_request import ALL
from fleetune.errors import Infeasible, Refused
from fleetune.store.lock import Lock, is_held
from fleetune.store.manifest import check_artifacts
from fleetune.store.storage import Storage

FAILED, REFUSED, INTERRUPTED = "failed", "refused", "interrupted"
ENDED_BADLY = (FAILED, REFUSED, INTERRUPTED)
RUN_STATES = ("running", "done", *ENDED_BADLY, "planned")
RUN, ONLY, EVALUATION, COMPARISON, REHEARSAL = "run", "only", "evaluation", "comparison", "rehearsal"
RUN_KINDS = (RUN, ONLY, EVALUATION, COMPARISON, REHEARSAL)
STAGE_STATES = ("waiting", "running", "done", "failed", "stopped")
HOW = ("", "ran", "reused")


@record
class StageRecord:
    """State of one stage of a run."""

    stage: str
    key: str = ""
    """Stage key; empty until the stage's inputs are known."""
    state: str = "waiting"
    started: str | None = None
    ended: str | None = None
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    """kind -> digest"""
    how: str = ""
    """`ran` or `reused`; empty until decided."""
    why: str = ""
    """Reason, such as `ran: training.learning_rate changed`."""
    error: str = ""

    def __post_init__(self) -> None:
        check_name("stage", self.stage)
        if self.key:
            check_name(f"stage {self.stage}: key", self.key)
        check_artifacts(f"stage {self.stage}: inputs", self.inputs)
        check_artifacts(f"stage {self.stage}: outputs", self.outputs)
        one_of(f"stage {self.stage}", "state", self.state, STAGE_STATES)
        one_of(f"stage {self.stage}", "how", self.how, HOW)


@record
class RunRecord:
    """`runs/RUN_ID/run.json`."""

    id: str
    number: Annotated[int, Field(exclude_if=lambda value: not value)] = 0
    """Above that of every run that the store had when this one began, whatever the clock says; two that begin at once
    may have the same. 0: a run of an older version."""
    kind: Annotated[str, Field(exclude_if=lambda value: value == RUN)] = RUN
    """One of RUN_KINDS: a run of the pipeline, or one beside it. `only`: a single stage, asked for with --only."""
    config: RunConfig
    seed: int
    code_version: str
    commit: str = ""
    """Git commit of the code; empty outside a checkout."""
    dirty: bool = False
    """True if the code has uncommitted edits."""
    state: str = "running"
    """One of RUN_STATES. `planned`: a dry run; `interrupted`: the run's process is gone; `refused`: only a change of
    its config helps."""
    started: str
    ended: str | None = None
    stages: tuple[StageRecord, ...]
    error: str = ""
    exit_code: int = 0
    """Exit code of the error; 0 without one."""

    def __post_init__(self) -> None:
        check_name("run", self.id)
        one_of(f"run {self.id}", "state", self.state, RUN_STATES)
        one_of(f"run {self.id}", "kind", self.kind, RUN_KINDS)
        distinct(f"run {self.id}", "stage", (stage.stage for stage in self.stages))

    @property
    def order(self) -> tuple[int, str, str]:
        """Sort key of runs, oldest first: by number, since a clock may have been set back, then by time and id."""
        return self.number, self.started, self.id

    @property
    def refused(self) -> bool:
        """True when the run failed for a reason that only a change of its config takes away."""
        return self.state in (FAILED, REFUSED) and self.exit_code in (Refused.exit_code, Infeasible.exit_code)

    @property
    def trained(self) -> bool:
        """True when the run has a model of its own: it is a run of the pipeline, and its training is done."""
        return self.kind == RUN and "checkpoint" in self.outputs

    @property
    def aside(self) -> bool:
        """True for a run that neither `latest` nor a config's name means: one beside the pipeline, or a refused one."""
        return self.kind != RUN or (self.refused and not self.trained)

    def stage(self, name: str) -> StageRecord:
        """Return the record of one stage. Refused: an unknown stage."""
        for stage in self.stages:
            if stage.stage == name:
                return stage
        raise Refused(f"run {self.id}: no stage {name!r}; it has {', '.join(s.stage for s in self.stages)}")

    @property
    def outputs(self) -> dict[str, str]:
        """kind -> digest of all artifacts that the run made or reused."""
        return {kind: digest for stage in self.stages for kind, digest in stage.outputs.items()}


LATEST, PREVIOUS = "latest", "previous"
RECEIPT = "receipt.json"
STARTED = re.compile(rb'\n "started": "([^"\\\n]*)"')
"""The line of a run record that says when the run started; deeper keys are indented further."""
COUNT = re.compile("[0-9]{1,9}")
NUMBER = re.compile(rb'\n "number": ([0-9]+)')


class RunRegistry:
    """The run records of one store."""

    def __init__(self, storage: Storage, local: Path) -> None:
        self._storage = storage
        self._locks = local / "locks"

    def save(self, record: RunRecord) -> None:
        """Write a run record atomically."""
        self._storage.write(f"runs/{record.id}/run.json", json_io.text(record).encode())

    def plain_config(self, run: str) -> dict[str, Any]:
        """The config of a run as its record was written, without what newer versions fill in."""
        owner = f"runs/{run}/run.json"
        found: dict[str, Any] = json_io.parse_plain(self._storage.read(owner) or b"", owner)["config"]
        return found

    def save_receipt(self, run: str, content: bytes) -> None:
        """Write the receipt of a run atomically, beside its record."""
        self._storage.write(f"runs/{run}/{RECEIPT}", content)

    def receipt(self, run: str) -> bytes | None:
        """The receipt of a run; None if it has none."""
        return self._storage.read(f"runs/{run}/{RECEIPT}")

    def load(self, run: str, done: bool = False, trained: bool = False) -> RunRecord:
        """Return the record of one run. Refused: an unknown or ambiguous name; the error lists candidates.

        `run` is a run id or its beginning, `latest`, `previous`, or a config's name for its newest run; each may be
        followed by ~N for the N-th run before it (`latest~1`, `demo~2`). Runs that are `aside` do not count, with
        `done` none that is not done, and with `trained` none without a model; they are found by their ids.
        """
        names = self._storage.names("runs")
        base, sign, back = ("latest", "~", "1") if run == PREVIOUS else run.partition("~")
        if sign and not COUNT.fullmatch(back):
            raise Refused(f"run {run!r}: write how many runs back after ~, such as {base or LATEST}~1")
        if not sign and base in names and (record := self._read(base)):
            return record
        found = self._from(base, names, lambda one: (one.state == "done" or not done) and (one.trained or not trained))
        which = " that is done" if done else " that was trained to its end" if trained else ""
        if int(back or 0) < len(found) and (record := self._read(found[int(back or 0)])):
            return record
        if sign and found:
            raise Refused(
                f"run {run!r}: there is none{which}; as many as {len(found) - 1} can be counted back from {found[0]}"
            )
        known = f"the newest are {', '.join(names[-4:])}" if names else "the store has no runs yet"
        if names and base == LATEST:
            known += "; refused runs and those beside the pipeline are named by their ids (fleetune runs)"
        raise Refused(f"run {run!r}: there is none{which}; {known}")

    def _from(self, base: str, names: list[str], counts: Callable[[RunRecord], bool]) -> list[str]:
        """Ids of the run that `base` names and of all earlier ones, newest first; empty if it names none."""
        records = self.all()
        counted = [record.id for record in records if not record.aside and counts(record)]
        if base == LATEST:
            return counted
        if base not in names and (same := {record.id for record in records if record.config.name == base}):
            return [run for run in counted if run in same]
        fitting = [base] if base in names else [name for name in names if base and name.startswith(base)]
        if len(fitting) > 1:
            raise Refused(f"run {base!r}: several begin like that ({', '.join(fitting[:4])}); give more of its id")
        order = [record.id for record in records]
        if not fitting or fitting[0] not in order:
            return fitting
        earlier = set(order[order.index(fitting[0]) + 1 :])
        return [*fitting, *(run for run in counted if run in earlier)]

    def all(self) -> tuple[RunRecord, ...]:
        """Return all readable run records, newest first; only `load` refuses an unreadable one."""
        return tuple(self.newest_first())

    def newest_first(self) -> Iterator[RunRecord]:
        """Yield the readable run records, newest first; each is parsed when it is reached."""
        found = self._contents()
        order = {name: self._order(name, content) for name, content in found.items()}
        for name in sorted(found, key=order.__getitem__, reverse=True):
            if record := self._readable(name, found[name]):
                yield record

    def count(self) -> int:
        """Return the number of run records, readable or not."""
        return sum(self._content(name) is not None for name in self._storage.names("runs"))

    def next_number(self) -> int:
        """Return the number of a run that begins now."""
        return 1 + max((self._order(name, content)[0] for name, content in self._contents().items()), default=0)

    def named(self, name: str) -> tuple[RunRecord, ...]:
        """Return the runs of the config called `name`, newest first."""
        return tuple(record for record in self.all() if record.config.name == name)

    def alive(self, run: str) -> Lock:
        """Lock that the process of a run holds; once it is released, a running run reads as interrupted."""
        return Lock(self._lock(run), _never)

    def is_alive(self, run: str) -> bool:
        """True while the process of a run holds its lock; False for a name that no run has."""
        return bool(NAME.fullmatch(run)) and is_held(self._lock(run))

    def _content(self, name: str) -> bytes | None:
        """The bytes of a run record; None if it does not exist or cannot be read."""
        try:
            return self._storage.read(f"runs/{name}/run.json")
        except OSError:
            return None

    def _contents(self) -> dict[str, bytes]:
        """Name -> bytes of every run record that can be read."""
        return {name: content for name in self._storage.names("runs") if (content := self._content(name))}

    def _order(self, name: str, content: bytes) -> tuple[int, str, str]:
        """RunRecord.order, read without parsing the record if it is formatted as the registry formats it."""
        if started := STARTED.search(content):
            number = NUMBER.search(content)
            return int(number[1]) if number else 0, started[1].decode("utf-8", "replace"), name
        record = self._readable(name, content)
        return record.order if record else (0, "", name)

    def _readable(self, name: str, content: bytes) -> RunRecord | None:
        try:
            return self._parsed(name, content)
        except Refused:
            return None

    def _read(self, name: str) -> RunRecord | None:
        try:
            content = self._storage.read(f"runs/{name}/run.json")
        except OSError as error:
            raise Refused(f"runs/{name}/run.json: cannot be read ({error.strerror}); delete that folder") from None
        return None if content is None else self._parsed(name, content)

    def _parsed(self, name: str, content: bytes) -> RunRecord:
        owner = f"runs/{name}/run.json"
        record = json_io.load(RunRecord, _as_meant(json_io.parse_plain(content, owner)), owner)
        if record.id != name:
            raise Refused(f"runs/{name}/run.json: it is the record of another run, {record.id}; delete that folder")
        if record.state == "running" and not is_held(self._lock(name)):
            return dataclasses.replace(record, state=INTERRUPTED)
        return dataclasses.replace(record, state=REFUSED) if record.refused else record  # `failed` in older versions

    def _lock(self, run: str) -> Path:
        return self._locks / f"run-{run}.lock"


def _as_meant(plain: Any) -> Any:
    """Fill in what a record of an older version meant by leaving it out: its weight decay was that of all weights."""
    config = plain.get("config") if isinstance(plain, dict) else None
    training = config.get("training") if isinstance(config, dict) else None
    if isinstance(training, dict) and training.get("weight_decay"):
        training.setdefault("weight_decay_on", ALL)
    return plain


def _never(seconds: float) -> bool:
    return True


def end_state(error: BaseException | None, interrupted: bool) -> str:
    """The state of a run that ended with `error`, or well."""
    if interrupted:
        return INTERRUPTED
    return REFUSED if isinstance(error, Refused | Infeasible) else FAILED if error else "done"


def new_run_id(name: str, moment: datetime, chance: Callable[[int], str]) -> str:
    """Return `NAME-YYYYMMDD-HHMMSS-xxxx`; `chance(n)` returns n random bytes in hex, as secrets.token_hex does."""
    return f"{name}-{moment:%Y%m%d-%H%M%S}-{chance(2)}"
