"""The coordinator's log: a round is committed when its line is on disk, and only then may parameters move."""

import json
import os
from pathlib import Path

from fleetune.contracts import wire
from fleetune.contracts.metrics import RoundMetrics


class CommitLog:
    """Append-only JSON lines, one per committed round."""

    def __init__(self, path: Path, first_round: int) -> None:
        """Open the log and forget rounds from `first_round` on: their parameters died with the workers."""
        self._path = path
        self.rounds: list[RoundMetrics] = [r for r in read_commits(path) if r.round < first_round]
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_text("".join(_line(r) for r in self.rounds), encoding="utf-8")
        part.replace(path)
        self._file = path.open("a", encoding="utf-8")

    def commit(self, metrics: RoundMetrics) -> None:
        """Write a round and wait until it is on disk."""
        self._file.write(_line(metrics))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rounds.append(metrics)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_commits(path: Path) -> list[RoundMetrics]:
    """Committed rounds of a log; a last line that a kill left half-written is not a commit."""
    if not path.exists():
        return []
    rounds = []
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        rounds.append(wire.parse(RoundMetrics, line, str(path)))
    return rounds


def _line(metrics: RoundMetrics) -> str:
    return json.dumps(wire.dump(metrics), allow_nan=False) + "\n"
