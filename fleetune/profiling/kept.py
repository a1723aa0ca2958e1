"""Answers of devices, kept from run to run, so that a second run measures new devices only.

KEY.json, written whole, with a checksum over all of it. The key covers everything that could change an answer, and not
the device's name: devices that are alike share one. Among those of one run the shorter times are kept, while another
run's answer takes the place of what was there.
"""

import dataclasses
import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fleetune.contracts import wire
from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.profiling.answer import Answer, quickest
from fleetune.store.manifest import file_digest
from fleetune.store.stage_key import SourceDigests
from fleetune.store.storage import LocalStorage

METHOD = 3
"""Goes up when the same device would be measured in another way."""
MEASURES = "fleetune.profiling.worker"
"""What a device runs to measure."""
PACKAGES = ("torch", "transformers")
"""What units are computed with."""


@record
class Entry:
    """One answer, and where it comes from."""

    key: str
    run: str
    """Which measured it."""
    moment: str
    """When: ISO 8601 in UTC."""
    answer: Answer
    sha256: str = ""
    """Of this record's JSON text with an empty sha256."""


def utc_now() -> datetime:
    """The default clock."""
    return datetime.now(UTC)


class Kept:
    """A folder of entries; safe for several threads and processes at once."""

    def __init__(self, folder: Path, run: str, *, anew: bool = False, clock: Callable[[], datetime] = utc_now) -> None:
        """`run` is this run's id; `anew`: nothing is found, so that everything is measured and replaced."""
        self.folder = folder
        self._place = LocalStorage(folder)
        self._run = run
        self._anew = anew
        self._clock = clock
        self._lock = threading.Lock()

    def find(self, key: str) -> Entry | None:
        """What is kept under a key; Refused, naming the file, where that is damaged."""
        return None if self._anew else self._read(key)

    def keep(self, key: str, answer: Answer) -> None:
        """Keep an answer of this run; OSError where the folder takes none."""
        with self._lock:
            try:
                held = self._read(key)
            except Refused:  # damaged: replaced
                held = None
            if held is not None and held.run == self._run:
                answer = quickest(answer, held.answer)
            entry = Entry(key=key, run=self._run, moment=self._clock().isoformat(), answer=answer)
            self._place.write(_name(key), wire.text(_sealed(entry)).encode())

    def _read(self, key: str) -> Entry | None:
        owner = str(self.folder / _name(key))
        try:
            content = self._place.read(_name(key))
        except OSError as error:
            raise Refused(f"{owner}: cannot be read ({error.strerror})") from None
        if content is None:
            return None
        entry = wire.parse(Entry, content, owner)
        if entry.key != key or _sealed(entry) != entry:
            raise Refused(f"{owner}: its content is not what was written")
        return entry


def key_of(asked: Mapping[str, Any], fingerprint: str, model_folder: Path) -> str:
    """sha256 over everything that could change an answer: device, what is asked of it, recorded model, measuring code.

    `asked` are plain values: the model, batch sizes, passes and limits. The folder holds graph.json and
    model/config.json.
    """
    named = {
        "method": METHOD,
        "code": SourceDigests().of(MEASURES),
        "fingerprint": fingerprint,
        "asked": asked,
        "graph": file_digest(model_folder / "graph.json"),
        "config": file_digest(model_folder / "model" / "config.json"),
        **{f"package {name}": version(name) for name in PACKAGES},
    }
    return hashlib.sha256(json.dumps(named, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _sealed(entry: Entry) -> Entry:
    plain = wire.text(dataclasses.replace(entry, sha256=""))
    return dataclasses.replace(entry, sha256=hashlib.sha256(plain.encode()).hexdigest())


def _name(key: str) -> str:
    return f"{key}.json"
