"""The benchmark `pipeline`: what counts as a stage's work, and what it refuses to measure."""

import socket
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.pipeline.commands import CONFIG, make_runs, verify_speed
from benchmarks.pipeline.flow_runs import LATE_TIMES, TimedRun, answer, expect, stages_work_s
from fleetune.store import RunRecord, StageRecord, Store
from flows import configs


def stage(name: str, begin_s: int, end_s: int, how: str = "ran") -> StageRecord:
    """A stage that was at work between two seconds of a minute."""
    at = "2026-01-01T00:00:{:02d}+00:00".format
    return StageRecord(stage=name, state="done", how=how, started=at(begin_s), ended=at(end_s))


def test_the_work_of_stages_counts_once() -> None:
    """Stages that work at the same time count once, pauses between stages and reused stages not at all."""
    stages = (
        stage("discover", 0, 10),
        stage("prepare", 2, 5),
        stage("profile", 8, 12),
        stage("plan", 20, 23),
        stage("train", 30, 40, "reused"),
    )
    record = RunRecord(
        id="demo-1", config=configs.load(CONFIG), seed=1, code_version="0", started="2026-01-01", stages=stages
    )
    assert stages_work_s(record) == 15.0


def test_a_run_that_ended_otherwise_is_not_measured() -> None:
    """A failed run gives no figure of a reused one."""
    failed = TimedRun(state="TryAgain", run="demo", from_submit_s=1.0, from_process_s=1.0, from_flow_s=1.0)
    with pytest.raises(RuntimeError, match="TryAgain"):
        expect(failed, "Completed")


def test_the_store_of_many_runs_is_listed(tmp_path: Path) -> None:
    """The runs that are made for `fleetune runs` are runs that the store reads."""
    store = Store(str(tmp_path))
    make_runs(store, 3)
    assert [len(run.stages) > 5 for run in store.runs.all()] == [True] * 3


def test_verified_bytes_are_counted(tmp_path: Path) -> None:
    """The speed of hashing is the artifact's bytes by its seconds, and is positive."""
    figure = verify_speed(tmp_path / "store", 4 << 20, repeats=2)
    assert figure.value is not None and figure.value > 0 and figure.spread is not None


ANSWER_S = 0.2


@contextmanager
def hanging() -> Iterator[tuple[str, socket.socket]]:
    """The address of a server that answers nothing, and its socket, whose connections nobody has accepted."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/api/flow_runs/1", listener


def answer_all_but_the_first(listener: socket.socket) -> None:
    """Keep the first connection open, and answer the others, until the listener is shut down."""
    with suppress(OSError), listener.accept()[0]:
        while True:
            with listener.accept()[0] as line, suppress(ConnectionError):  # where the answer came too late
                line.recv(65536)
                line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


def test_an_answer_that_never_comes_is_asked_for_again() -> None:
    """One request without an answer ends no measurement, a server that answers none does, with a sentence, and what may
    have been written is not written twice.

    Bug: a benchmark ended with the traceback of one request that was not answered within 60 s.
    """
    with hanging() as (address, listener), ThreadPoolExecutor() as pool:
        served = pool.submit(answer_all_but_the_first, listener)
        assert answer(urllib.request.Request(address), ANSWER_S) == b"{}"
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        served.result()
    with hanging() as (address, _), pytest.raises(RuntimeError, match=f"did not answer {LATE_TIMES} times"):
        answer(urllib.request.Request(address), ANSWER_S)
    with hanging() as (address, listener):
        with pytest.raises(TimeoutError):
            answer(urllib.request.Request(address, data=b"{}"), ANSWER_S)
        listener.setblocking(False)
        listener.accept()[0].close()
        with pytest.raises(BlockingIOError):
            listener.accept()
