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

LATEST, PREVIOUS = "latest", "previous"


class RunBook:
    """All runs of one store."""

    def __init__(self, place: Place, local: Path) -> None:
        self._place = place
        self._locks = local / "locks"

    def save(self, record: RunRecord) -> None:
        """Write a run record whole."""
        self._place.write(f"runs/{record.id}/run.json", wire.text(record).encode())

    def load(self, run: str) -> RunRecord:
        """The record of one run, by any of its names; Refused with what there is.

        Names: its id or the beginning of it; `latest`, `previous`; the name that its run file gives, which means the
        newest run of that name. Any of them with ~N: the N-th before (`latest~1`, `demo~2`).
        """
        names = self._place.names("runs")
        base, sign, back = ("latest", "~", "1") if run == PREVIOUS else run.partition("~")
        if sign and not back.isdecimal():
            raise Refused(f"run {run!r}: after ~ comes how many runs before, such as {base or LATEST}~1")
        if not sign and base in names and (record := self._read(base)):
            return record
        found = self._from(base, names)
        if int(back or 0) < len(found) and (record := self._read(found[int(back or 0)])):
            return record
        if sign and found:
            raise Refused(
                f"run {run!r}: there is none; as many as {len(found) - 1} can be counted back from {found[0]}"
            )
        raise Refused(f"run {run!r}: there is none; the newest are {', '.join(names[-4:]) or 'none yet'}")

    def _from(self, base: str, names: list[str]) -> list[str]:
        """Ids of the run that `base` names and of those before it, newest first; empty when it names none."""
        order = [record.id for record in self.all()]
        if base == LATEST:
            return order
        if base not in names and (same := [record.id for record in self.named(base)]):
            return same
        fitting = [base] if base in names else [name for name in names if base and name.startswith(base)]
        if len(fitting) > 1:
            raise Refused(f"run {base!r}: several begin like that ({', '.join(fitting[:4])}); give more of its id")
        return order[order.index(fitting[0]) :] if fitting and fitting[0] in order else fitting

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
        if record.id != name:
            raise Refused(f"runs/{name}/run.json: it is the record of another run, {record.id}; delete that folder")
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
