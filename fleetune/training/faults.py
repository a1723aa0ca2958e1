"""Faults that befall devices at named points of a training, for tests and `fleetune chaos`.

`FaultyLauncher` starts each worker as `faulty_worker`, with the faults of its device in a file beside its task; no
other worker knows of faults. Each fault happens once, also where its round is run again by another process, and leaves
a mark: a file that says where it happened.
"""

import os
import signal
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from fleetune.contracts import json_io
from fleetune.contracts.record import not_negative, one_of, record
from fleetune.launching import Command, Job, Launcher
from fleetune.training.worker_command import WORKER

FORWARD, BACKWARD, ALL_REDUCE = "forward", "backward", "all-reduce"
PREPARED, COMMIT, BACKUP, CHECKPOINT, MOVE = "prepared", "commit", "backup", "checkpoint", "move"
POINTS = (FORWARD, BACKWARD, ALL_REDUCE, PREPARED, COMMIT, BACKUP, CHECKPOINT, MOVE)
"""Before a forward or backward; in the all-reduce, with a part sent; when gradients are reported and no commit is here;
when the commit is here and is not applied; between two backups; when a shard is written and not reported; in a
recovery."""
NEXT = "next"
"""The next point of any kind."""
KILL, FREEZE, MEMORY, CUT, SEVER = "kill", "freeze", "out of memory", "cut", "sever"
GPU_ERROR = "GPU error"
KINDS = (KILL, FREEZE, MEMORY, GPU_ERROR, CUT, SEVER)
"""Its process is killed, or stopped (SIGSTOP); it is refused memory; its GPU fails; the connection of the next
message breaks, which loses the message, or its first piece; the same, and the connection does not come back."""
OVERDUE_ROUNDS = 1
"""A device that does not come to the point within so many rounds meets its fault at the next one."""
FAULTS = "faults.json"
WORKER_WITH_FAULTS = "fleetune.training.faulty_worker"
POLL_S = 0.05


@record
class Fault:
    """Something that befalls one device."""

    number: int
    """Tells the faults of a training apart."""
    device: str
    kind: str
    point: str
    round: int
    """The first round in which it may happen."""
    frozen_s: float | None = None
    """Seconds after which a frozen device goes on; None: it stays frozen."""

    def __post_init__(self) -> None:
        one_of(f"fault {self.number}", "kind", self.kind, KINDS)
        one_of(f"fault {self.number}", "point", self.point, (*POINTS, NEXT))
        not_negative(f"fault {self.number}", round=self.round)

    @property
    def takes_device(self) -> bool:
        """True if the device is lost by it."""
        return self.kind in (KILL, MEMORY, GPU_ERROR) or (self.kind == FREEZE and self.frozen_s is None)

    def is_due(self, point: str, round: int) -> bool:
        """Return whether it happens at this point, where `round` is the newest round that the device has begun."""
        overdue = round > self.round + OVERDUE_ROUNDS
        return round >= self.round and (point == self.point or self.point == NEXT or overdue)


@record
class Mark:
    """Where a fault happened."""

    pid: int
    point: str
    round: int


@record
class DeviceFaults:
    """The faults of one device that are still to come, and the folder of all marks."""

    faults: tuple[Fault, ...]
    marks: str
    relayed: bool = False
    """True if its links lead through relays whether or not one is to break, so that all its rounds take as long."""


class FaultsAhead:
    """The faults that a device has not met yet; one that has happened is looked at no more, and costs nothing."""

    def __init__(self, faults: DeviceFaults) -> None:
        self._ahead, self._marks = list(faults.faults), Path(faults.marks)
        self._lock = threading.Lock()

    def any_of(self, kinds: Iterable[str]) -> bool:
        """Return whether a fault of these kinds is to come."""
        return any(fault.kind in kinds for fault in self._ahead)

    def take(self, kinds: Iterable[str], point: str, round: int) -> Fault | None:
        """Return a fault of these kinds that is to happen now, whose mark is left; None if there is none.

        Any thread may ask, as those do that pace messages.
        """
        with self._lock:
            for fault in [each for each in self._ahead if each.kind in kinds and each.is_due(point, round)]:
                self._ahead.remove(fault)
                if leave_mark(self._marks, fault.number, point, round):
                    return fault
        return None


def leave_mark(marks: Path, number: int, point: str, round: int) -> bool:
    """Leave the mark of a fault, whole; return False if it is there already."""
    mark = mark_of(marks, number)
    part = mark.with_name(f"{mark.name}.{os.getpid()}.part")
    part.write_text(json_io.text(Mark(pid=os.getpid(), point=point, round=round)), encoding="utf-8")
    try:
        os.link(part, mark)
    except FileExistsError:
        return False
    finally:
        part.unlink()
    return True


def mark_of(marks: Path, number: int) -> Path:
    """Return the file that a fault leaves."""
    return marks / f"{number:04d}.json"


def happened(marks: Path, number: int) -> Mark | None:
    """Return where a fault happened; None if it has not."""
    path = mark_of(marks, number)
    return json_io.read(Mark, path) if path.exists() else None


class FaultyLauncher:
    """Starts workers that meet faults, by another launcher, which starts all other commands as they are."""

    def __init__(self, launcher: Launcher, faults: Sequence[Fault], marks: Path, relayed: bool = False) -> None:
        """marks: an absolute folder, which is made. relayed: see `DeviceFaults`; of devices without faults, too."""
        marks.mkdir(parents=True, exist_ok=True)
        self._launcher, self._faults, self._marks, self._relayed = launcher, faults, marks, relayed

    def start(self, command: Command) -> Job:
        """Start a command; TryAgain when the place cannot."""
        if command.module != WORKER:
            return self._launcher.start(command)
        task = Path(command.arguments[1])
        own = tuple(
            fault
            for fault in self._faults
            if fault.device == task.parent.name and happened(self._marks, fault.number) is None
        )
        if not own and not self._relayed:
            return self._launcher.start(command)
        told = DeviceFaults(faults=own, marks=str(self._marks), relayed=self._relayed)
        json_io.write(told, task.with_name(FAULTS))
        job = self._launcher.start(replace(command, module=WORKER_WITH_FAULTS))
        if any(fault.frozen_s is not None for fault in own):
            threading.Thread(target=self._thaw, args=(own, job), name="thaw", daemon=True).start()
        return job

    def _thaw(self, faults: Sequence[Fault], job: Job) -> None:
        """Let a process go on whenever it is frozen for a time that is over."""
        frozen = {fault.number: fault.frozen_s for fault in faults if fault.frozen_s is not None}
        while frozen and job.poll() is None:
            time.sleep(POLL_S)
            for number in list(frozen):
                if (mark := happened(self._marks, number)) is None:
                    continue
                while job.poll() is None and not _is_stopped(mark.pid):  # it stops itself after it has left the mark
                    time.sleep(POLL_S)
                time.sleep(frozen.pop(number))
                with suppress(ProcessLookupError):
                    os.kill(mark.pid, signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    """Tell whether a process is frozen, or gone."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
