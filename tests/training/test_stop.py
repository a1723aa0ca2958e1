"""A training that is told to end leaves a checkpoint of its last committed round, and loses none."""

import functools
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.plan import Plan
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import TryAgain
from fleetune.launching import Command, ProcessLauncher
from fleetune.recovery.holdings import Version
from fleetune.training.exchange import FIRST_ATTEMPT, BrokenOff
from fleetune.training.measurements import encode_rows
from fleetune.training.optimizer import NamedOptimizer
from fleetune.training.worker import outdated
from fleetune.training.worker_group import WorkerGroup
from fleetune.training.worker_modules import WORKER_MODULES
from fleetune.training.worker_state import CommittedState
from tests.support.training.ends import assert_same_bits
from tests.support.training.fake_workers import FakeLauncher, FakeWorker
from tests.support.training.listeners import StopAfter
from tests.support.training.runs import Prepared, plan, run_plan, stage_task

TRAINING = TrainingRequest(
    rounds=9, batch_samples=24, micro_batch_samples=8, learning_rate=1e-3, schedule="cosine", checkpoint_every_rounds=99
)
SAMPLES = TRAINING.batch_samples
END_S = 300.0
"""Patience of the tests."""
PACED_CORES, SLOW_ROUND_S = 0.02, 20.0
"""An emulated round takes about so many seconds, by what one with so many cores has just taken: a chosen quota would be
too small for a slow machine, on which a device is taken for stuck, and too large for a fast one."""


@pytest.fixture(scope="module")
def whole(bert: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Plan], Path]:
    """The folder of a training by a plan that is not stopped; each plan is trained once."""

    @functools.cache
    def folder(made: Plan) -> Path:
        run_plan(bert, made, TRAINING, found := tmp_path_factory.mktemp("whole"))
        return found

    return folder


@pytest.mark.parametrize(("cuts", "shares"), [([3], [[8], [8]]), ([3], [[3, 5], [8]])], ids=["pipeline", "group"])
def test_a_stopped_training_loses_no_committed_round(
    cuts: list[int], shares: list[list[int]], bert: Prepared, whole: Callable[[Plan], Path], tmp_path: Path
) -> None:
    """Stopped after round 5 without any checkpoint before, it resumes from 5, to the weights of a whole training."""
    made = plan(bert.units, cuts, shares)
    stop = StopAfter(5)
    with pytest.raises(TryAgain, match=r"^ended after round 5 of 9, with a checkpoint of it; run it again to go on$"):
        run_plan(bert, made, TRAINING, tmp_path / "cut", stop=stop, progress=stop.listen)
    metrics = run_plan(bert, made, TRAINING, tmp_path / "cut")
    assert metrics.resumed_from_round == 5
    assert_same_bits(whole(made), tmp_path / "cut")


def test_a_stop_does_not_wait_for_a_long_round(bert: Prepared, tmp_path: Path) -> None:
    """Devices that compute for many seconds a round write the committed state beside it, and are ended in it."""
    made = plan(bert.units, [3], [[8], [8]])
    short = replace(TRAINING, rounds=2)
    run_plan(bert, made, short, tmp_path / "whole", cores=PACED_CORES)
    cores = PACED_CORES * max(rounds_s(tmp_path / "whole")) / SLOW_ROUND_S
    stop = StopAfter(1)
    with pytest.raises(TryAgain, match="^ended after round 1 of 2, with a checkpoint"):
        run_plan(bert, made, short, tmp_path / "cut", stop=stop, progress=stop.listen, cores=cores)
    took_s = time.monotonic() - stop.asked_s
    (first_s,) = rounds_s(tmp_path / "cut")
    assert took_s < first_s, f"took {took_s:.1f} s, a round {first_s:.1f} s"
    assert run_plan(bert, made, short, tmp_path / "cut").resumed_from_round == 1
    assert_same_bits(tmp_path / "whole", tmp_path / "cut")


def rounds_s(folder: Path) -> list[float]:
    """The seconds of each committed round of the training in `folder`."""
    return [json.loads(line)["round_s"] for line in (folder / "work" / "commits.jsonl").read_text().splitlines()]


def test_sigterm_in_the_middle_of_the_stage_loses_no_round(
    bert: Prepared, whole: Callable[[Plan], Path], tmp_path: Path
) -> None:
    """SIGTERM of the stage's process ends all its processes; the next one resumes after the last round that was
    reported, to the weights of a whole training.
    """
    made = plan(bert.units, [3], [[8], [8]])
    command = Command(  # as a flow starts it: forked, with a server of its own that forks its workers
        module="stages.train",
        arguments=("--task", str(stage_task(bert, made, tmp_path / "cut", TRAINING))),
        preloads=WORKER_MODULES,
        forks=True,
        log=tmp_path / "log",
    )
    stage = ProcessLauncher().start(command)
    lines = map(json.loads, stage.lines())
    next(line for line in lines if line.get("done") == SAMPLES)
    processes = psutil.Process(stage.pid).children(recursive=True)
    next(line for line in lines if line.get("done") == 4 * SAMPLES)
    os.kill(stage.pid, signal.SIGTERM)
    *_, last = lines
    assert stage.wait(END_S) == 75
    assert len(processes) >= 2 and not psutil.wait_procs(processes, timeout=END_S)[1]
    committed = len((tmp_path / "cut" / "work" / "commits.jsonl").read_text().splitlines())
    assert 4 <= committed < TRAINING.rounds
    assert last["message"].startswith(f"ended after round {committed} of 9, with a checkpoint")
    again = ProcessLauncher().start(command)
    resumed = next(line for line in map(json.loads, again.lines()) if line["event"] == "resumed")
    assert again.wait(END_S) == 0
    assert resumed["text"].startswith(f"goes on from round {committed} of 9")
    assert_same_bits(whole(made), tmp_path / "cut")


def test_a_last_checkpoint_that_nobody_writes_ends_after_20_s(
    bert: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that is told to end waits so long and no longer for its devices to write; the error names one. Each
    look at the clock takes a second here.
    """
    seconds = itertools.count()
    # replaced: 20 s of waiting, without any for what else looks at the time
    monkeypatch.setattr(WorkerGroup, "now_s", lambda self: float(next(seconds)))

    def prepares(worker: FakeWorker) -> None:
        row = TimelineRow(device=worker.device, lane="main", action="main/0F0", start_s=0.0, end_s=1.0, bytes=0)
        told = {"losses": {"main": 1.0}, "norms": {}, "peak_memory_bytes": 1, "sent_bytes": {}}
        header = {"round": 0, "attempt": worker.exchange.attempt, **told}
        worker.exchange.send_control("ready", header, encode_rows([row]))
        worker.wait_for_stop()

    stop = StopAfter(1)
    launcher = FakeLauncher(d0=prepares, d1=prepares)
    why = (
        "^ended after round 1 of 9, but a checkpoint was not possible within 20 s: d0 has not written its part; run it"
    )
    with pytest.raises(TryAgain, match=why):
        two = plan(bert.units, [3], [[8], [8]])
        run_plan(bert, two, TRAINING, tmp_path, launcher=launcher, stop=stop, progress=stop.listen)


class Slow:
    """A segment whose parameter a test moves by hand."""

    def __init__(self) -> None:
        self.parameters = {"w": torch.nn.Parameter(torch.zeros(3))}
        self.buffers: dict[str, torch.Tensor] = {}


def test_a_state_is_written_before_or_after_a_commit_and_never_between(tmp_path: Path) -> None:
    """A request during a commit waits for it; one for another round is refused, and after a failed commit the state is
    told as broken off, by an error that nobody reports a second time."""
    segment: Any = Slow()
    state = CommittedState({"s": (segment, NamedOptimizer(segment.parameters, TRAINING))}, Version(4, FIRST_ATTEMPT))
    written: list[object] = []
    with state.advance(FIRST_ATTEMPT):
        thread = threading.Thread(target=lambda: written.append(state.write(tmp_path, 5)))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and not written
        segment.parameters["w"].data += 1
    thread.join(END_S)
    assert len(written) == 1
    with pytest.raises(TryAgain, match="asked for the state after 3 rounds, this device has 5"):
        state.write(tmp_path, 3)
    with pytest.raises(RuntimeError), state.advance(FIRST_ATTEMPT):
        raise RuntimeError("out of memory in the middle")
    with pytest.raises(BrokenOff):
        state.write(tmp_path, 5)


def test_a_commit_deletes_no_checkpoint_that_was_asked_for_after_it() -> None:
    """Bug: a request to save overtook the commit that it follows. The worker saved the state as soon as it had it, took
    it for an old one that the commit no longer lists, and deleted the folder in which others still wrote.
    """
    assert outdated([6, 9, 12], kept=[9], round=11) == {6}
    assert outdated([6, 9, 12], kept=[9, 12], round=14) == {6}
    assert outdated([6, 9, 12], kept=[], round=12) == {6, 9}
    assert outdated([6, 9, 12], kept=[], round=13) == {6, 9, 12}
