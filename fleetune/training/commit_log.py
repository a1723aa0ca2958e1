"""The coordinator's log. A round is committed once its line is on disk; only then may parameters move."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.metrics import RoundMetrics

COMMITS = "commits.jsonl"


def flush(path: Path) -> None:
    """Wait until the bytes of a file, or the entries of a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_durably(text: str, path: Path) -> None:
    """Write a text file atomically; it is on disk under its name when the call returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        flush(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    flush(path.parent)


class CommitLog:
    """Append-only JSON lines, one per committed round."""

    def __init__(self, path: Path, rounds: Sequence[RoundMetrics]) -> None:
        """Open the log with these rounds and discard others, whose parameters were lost with their workers."""
        self.rounds: list[RoundMetrics] = list(rounds)
        write_durably(self.text, path)
        self._file = path.open("a", encoding="utf-8")

    @property
    def text(self) -> str:
        """The lines of all committed rounds."""
        return "".join(_line(metrics) for metrics in self.rounds)

    def commit(self, metrics: RoundMetrics) -> None:
        """Append a round and wait until it is on disk."""
        self._file.write(_line(metrics))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rounds.append(metrics)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_commits(path: Path) -> list[RoundMetrics]:
    """Return the committed rounds of a log; Refused for a malformed line.

    A last line without a line end was cut off by a kill and is not a commit.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json_io.parse(RoundMetrics, line, str(path)) for line in lines]


def _line(metrics: RoundMetrics) -> str:
    return json.dumps(json_io.dump(metrics), allow_nan=False) + "\n"
