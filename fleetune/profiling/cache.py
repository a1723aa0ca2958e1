"""Cache of measurements, so that a second run measures only new devices.

An entry is a file KEY.json with a checksum, written atomically. The key covers everything that can change a measurement
except the device's name, so identical devices share an entry. Of several measurements in one run the shorter times are
stored; a measurement of another run replaces the entry, but for what only the older one has.
"""

import dataclasses
import hashlib
import json
import threading
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.filesystem import file_digest
from fleetune.profiling.messages import DeviceMeasurement, minimum_times, with_extras
from fleetune.store.stage_key import SourceDigests
from fleetune.store.storage import LocalStorage
from fleetune.wall_clock import WallClock, utc_now

METHOD = 5
"""Version of the measuring method; a change invalidates all entries."""
MEASURING_MODULE = "fleetune.profiling.measuring_process"
"""Module that a device runs to measure; its code is part of the key."""
PACKAGES = ("torch", "transformers")
"""Packages that compute the units; their versions are part of the key."""


@record
class CacheEntry:
    """A measurement and its origin."""

    key: str
    run: str
    """Id of the run that measured it."""
    moment: str
    """Time of the measurement, ISO 8601 in UTC."""
    answer: DeviceMeasurement
    sha256: str = ""
    """Checksum of this record's JSON text with an empty sha256."""


class MeasurementCache:
    """A folder of entries, safe for concurrent threads and processes."""

    def __init__(self, folder: Path, run: str, *, anew: bool = False, clock: WallClock = utc_now) -> None:
        """`run` is this run's id; with `anew` nothing is loaded, so that everything is measured and replaced."""
        self.folder = folder
        self._storage = LocalStorage(folder)
        self._run = run
        self._anew = anew
        self._clock = clock
        self._lock = threading.Lock()

    def load(self, key: str) -> CacheEntry | None:
        """The entry of a key, or None. Raises Refused, naming the file, if the entry is damaged."""
        return None if self._anew else self._read(key)

    def store(self, key: str, answer: DeviceMeasurement) -> None:
        """Store a measurement of this run. Raises OSError if the folder is not writable."""
        with self._lock:
            try:
                held = self._read(key)
            except Refused:  # damaged: replaced
                held = None
            if held is not None and held.run == self._run:
                answer = minimum_times(answer, held.answer)
            if held is not None and not self._anew:
                answer = with_extras(answer, held.answer)
            entry = CacheEntry(key=key, run=self._run, moment=self._clock().isoformat(), answer=answer)
            self._storage.write(_file_name(key), json_io.text(_with_checksum(entry)).encode())

    def _read(self, key: str) -> CacheEntry | None:
        owner = str(self.folder / _file_name(key))
        try:
            content = self._storage.read(_file_name(key))
        except OSError as error:
            raise Refused(f"{owner}: cannot be read ({error.strerror})") from None
        if content is None:
            return None
        entry = json_io.parse(CacheEntry, content, owner)
        if entry.key != key or _with_checksum(entry) != entry:
            raise Refused(f"{owner}: its content is not what was written")
        return entry


def cache_key(settings: Mapping[str, Any], fingerprint: str, model_folder: Path) -> str:
    """Cache key: sha256 over everything that can change a measurement (device, task, recorded model, measuring code).

    `settings` are plain values: the model, batch sizes, passes and limits. The folder holds graph.json and
    model/config.json.
    """
    named = {
        "method": METHOD,
        "code": SourceDigests().of(MEASURING_MODULE),
        "fingerprint": fingerprint,
        "asked": settings,
        "graph": file_digest(model_folder / "graph.json"),
        "config": file_digest(model_folder / "model" / "config.json"),
        **{f"package {name}": metadata.version(name) for name in PACKAGES},
    }
    return hashlib.sha256(json.dumps(named, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _with_checksum(entry: CacheEntry) -> CacheEntry:
    plain = json_io.text(dataclasses.replace(entry, sha256=""))
    return dataclasses.replace(entry, sha256=hashlib.sha256(plain.encode()).hexdigest())


def _file_name(key: str) -> str:
    return f"{key}.json"
