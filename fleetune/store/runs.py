"""Run records: `runs/RUN_ID/run.json`, replaced whole at every change."""

import dataclasses
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from fleetune.contracts import wire
from fleetune.errors import Refused
from fleetune.store.lock import Lock, is_held
from fleetune.store.places import Place
from fleetune.store.records import RunRecord


class RunBook:
    """All runs of one store."""

    def __init__(self, place: Place, local: Path) -> None:
        self._place = place
        self._locks = local / "locks"

    def save(self, record: RunRecord) -> None:
        """Write a run record whole."""
        self._place.write(f"runs/{record.id}/run.json", wire.text(record).encode())

    def load(self, run: str) -> RunRecord:
        """The record of one run, by its id or the beginning of it, or `latest`; Refused with what there is."""
        names = self._place.names("runs")
        if run == "latest" and (readable := self.all()):
            return readable[0]
        fitting = [run] if run in names else [name for name in names if run and name.startswith(run)]
        if len(fitting) == 1 and (record := self._read(fitting[0])):
            return record
        if len(fitting) > 1:
            raise Refused(f"run {run!r}: several begin like that ({', '.join(fitting[:4])}); give more of its id")
        shown = ", ".join(names[-4:]) or "none yet"
        raise Refused(f"run {run!r}: there is none; the newest are {shown}")

    def all(self) -> tuple[RunRecord, ...]:
        """Every run, newest first; a record that cannot be read stands in nobody's way (`load` refuses it)."""
        found = [record for name in self._place.names("runs") if (record := self._readable(name))]
        return tuple(sorted(found, key=lambda record: (record.started, record.id), reverse=True))

    def named(self, name: str) -> tuple[RunRecord, ...]:
        """Runs of the config of that name, newest first."""
        return tuple(record for record in self.all() if record.config.name == name)

    def alive(self, run: str) -> Lock:
        """To be held by the process that conducts a run; when it dies, the run reads as interrupted."""
        return Lock(self._lock(run), _never)

    def _readable(self, name: str) -> RunRecord | None:
        try:
            return self._read(name)
        except Refused:
            return None

    def _read(self, name: str) -> RunRecord | None:
        content = self._place.read(f"runs/{name}/run.json")
        if content is None:
            return None
        record = wire.parse(RunRecord, content, f"runs/{name}/run.json")
        if record.state == "running" and not is_held(self._lock(name)):
            return dataclasses.replace(record, state="interrupted")
        return record

    def _lock(self, run: str) -> Path:
        return self._locks / f"run-{run}.lock"


def _never(seconds: float) -> bool:
    return True


def new_run_id(name: str, moment: datetime, chance: Callable[[int], str]) -> str:
    """`NAME-YYYYMMDD-HHMMSS-xxxx`; `chance(n)` gives n random bytes in hex (secrets.token_hex)."""
    return f"{name}-{moment:%Y%m%d-%H%M%S}-{chance(2)}"
