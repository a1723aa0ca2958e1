"""Faults as a device meets them: each once, and never a burden to the rounds before and after it."""

from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts import json_io
from fleetune.launching import Command
from fleetune.training.faults import (
    CUT,
    FAULTS,
    KILL,
    NEXT,
    WORKER_WITH_FAULTS,
    DeviceFaults,
    Fault,
    FaultsAhead,
    FaultyLauncher,
    leave_mark,
)
from fleetune.training.worker_command import WORKER


def fault(number: int, kind: str = KILL, round: int = 3) -> Fault:
    """A fault of device a."""
    return Fault(number=number, device="a", kind=kind, point=NEXT, round=round)


def test_a_fault_that_has_happened_costs_nothing_any_more(tmp_path: Path) -> None:
    """It happens at the first point of its round, and once: later points look at no file for it, since what rehearses
    failures must not slow the rounds that are measured."""
    ahead = FaultsAhead(DeviceFaults(faults=(fault(0), fault(1, CUT)), marks=str(tmp_path)))
    assert ahead.take([KILL], "forward", 2) is None
    assert ahead.take([KILL], "forward", 3) == fault(0)
    before = tmp_path.stat().st_mtime_ns
    assert [ahead.take([KILL], "forward", round) for round in (3, 4, 5)] == [None] * 3
    assert tmp_path.stat().st_mtime_ns == before
    assert ahead.any_of([CUT]) and not ahead.any_of([KILL])


def test_a_fault_that_another_process_met_is_passed(tmp_path: Path) -> None:
    """The next one of the same point happens instead."""
    leave_mark(tmp_path, 0, "forward", 3)
    ahead = FaultsAhead(DeviceFaults(faults=(fault(0), fault(1)), marks=str(tmp_path)))
    assert ahead.take([KILL], "forward", 3) == fault(1)
    assert ahead.take([KILL], "forward", 3) is None


class Starts:
    """A launcher that notes what it is asked to start."""

    def __init__(self) -> None:
        self.commands: list[Command] = []

    def start(self, command: Command) -> Any:
        """Note it."""
        self.commands.append(command)


@pytest.mark.parametrize(("met", "given"), [((), (0, 1)), ((0,), (1,)), ((0, 1), ())])
def test_a_worker_is_given_the_faults_to_come(tmp_path: Path, met: tuple[int, ...], given: tuple[int, ...]) -> None:
    """One that has met them all starts as any other worker does, without relays before its links."""
    task = tmp_path / "a" / "task.json"
    task.parent.mkdir()
    for number in met:
        (tmp_path / "marks").mkdir(exist_ok=True)
        leave_mark(tmp_path / "marks", number, "forward", 3)
    starts = Starts()
    launcher = FaultyLauncher(starts, (fault(0), fault(1, CUT)), tmp_path / "marks")
    launcher.start(Command(module=WORKER, arguments=("--task", str(task)), log=tmp_path / "log"))
    assert starts.commands[0].module == (WORKER_WITH_FAULTS if given else WORKER)
    if given:
        assert tuple(each.number for each in json_io.read(DeviceFaults, task.with_name(FAULTS)).faults) == given


@pytest.mark.parametrize("device", ["a", "b"])
def test_relays_that_stay_are_those_of_every_worker(tmp_path: Path, device: str) -> None:
    """Bug: a rehearsal's training without faults, and devices that had met theirs, had no relays before their links, so
    that rounds before took 7 % longer, which passed for what the faults had cost."""
    task = tmp_path / device / "task.json"
    task.parent.mkdir()
    leave_mark(tmp_path, 0, "forward", 3)
    starts = Starts()
    launcher = FaultyLauncher(starts, (fault(0),), tmp_path, relayed=True)
    launcher.start(Command(module=WORKER, arguments=("--task", str(task)), log=tmp_path / "log"))
    assert starts.commands[0].module == WORKER_WITH_FAULTS
    told = json_io.read(DeviceFaults, task.with_name(FAULTS))
    assert told.relayed and not told.faults
