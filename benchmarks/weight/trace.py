"""The functions that a process enters: this one, or a worker, by `python -m benchmarks.weight.trace --task FILE`."""

import inspect
import json
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, Self

from benchmarks.weight.sources import PRODUCT, ROOT
from fleetune.launching import Command, Job, ProcessLauncher
from fleetune.training.worker import main
from fleetune.training.worker_command import WORKER

TRACE = "trace.json"
"""File beside a worker's task: what it has entered."""
TRACED = tuple(f"{ROOT / package}/" for package in PRODUCT if package != "benchmarks")


class Entry(NamedTuple):
    """A function of the product was called, or a generator went on."""

    at_s: float
    """By the clock that the processes of a machine share."""
    file: str
    function: str
    caller: str
    """File of the function of the product that called it, maybe through a library; empty where a thread begins."""


class Trace:
    """Notes every function of the product that is entered, in this thread and in those that start later."""

    def __init__(self) -> None:
        self._entered: list[tuple[float, CodeType, CodeType | None]] = []
        self._ours: dict[CodeType, bool] = {}
        self._over = False

    def __enter__(self) -> Self:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        sys.setprofile(None)
        threading.setprofile(None)

    @property
    def entries(self) -> list[Entry]:
        """All of them."""
        return [
            Entry(at_s, _name(code.co_filename), code.co_qualname, _name(caller.co_filename) if caller else "")
            for at_s, code, caller in tuple(self._entered)
        ]

    def _note(self, frame: FrameType, what: str, argument: Any) -> None:
        if self._over:
            sys.setprofile(None)  # of this thread, which lasts longer
        elif what == "call" and self._is_ours(frame.f_code):
            below = frame.f_back
            while below is not None and not self._is_ours(below.f_code):
                below = below.f_back
            self._entered.append((time.monotonic(), frame.f_code, below.f_code if below else None))

    def _is_ours(self, code: CodeType) -> bool:
        """Return whether it is a function of the product; what an import runs outside of functions is none."""
        if code not in self._ours:
            self._ours[code] = code.co_filename.startswith(TRACED) and bool(code.co_flags & inspect.CO_OPTIMIZED)
        return self._ours[code]


def _name(path: str) -> str:
    return path.removeprefix(f"{ROOT}/")


class TracingLauncher:
    """Starts workers as this module, and all other commands as they are."""

    def start(self, command: Command) -> Job:
        """Start a command."""
        module = __spec__.name if command.module == WORKER else command.module
        return ProcessLauncher().start(replace(command, module=module))


def worker_entries(folder: Path) -> list[Entry]:
    """Return what the worker entered that had this folder; nothing of one that was killed."""
    path = folder / TRACE
    return [Entry(*each) for each in json.loads(path.read_bytes())] if path.exists() else []


@dataclass(frozen=True)
class Walk:
    """What a reader walks through who follows a process from one time to another."""

    files: frozenset[str]
    functions: frozenset[tuple[str, str]]
    """(File, name); comprehensions and lambdas belong to what they stand in."""
    moves: int
    """Calls from one file to another."""

    @classmethod
    def of(cls, entries: Iterable[Entry], from_s: float, to_s: float) -> Self:
        """Return the walk between two times."""
        entered = [entry for entry in entries if from_s <= entry.at_s < to_s]
        return cls(
            frozenset(entry.file for entry in entered),
            frozenset((entry.file, entry.function) for entry in entered if not entry.function.endswith(">")),
            sum(entry.caller not in ("", entry.file) for entry in entered),
        )


def together(walks: Iterable[Walk]) -> Walk:
    """Return the walk through several processes."""
    listed = list(walks)
    return Walk(
        frozenset().union(*(walk.files for walk in listed)),
        frozenset().union(*(walk.functions for walk in listed)),
        sum(walk.moves for walk in listed),
    )


if __name__ == "__main__":
    with Trace() as trace:
        code = main()
    Path(sys.argv[2]).with_name(TRACE).write_text(json.dumps(trace.entries))
    sys.exit(code)
