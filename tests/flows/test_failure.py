"""Failed and killed runs, and the next run after them."""

import errno
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from fleetune.contracts import json_io
from fleetune.errors import FleetuneError, Infeasible, Refused, TryAgain
from fleetune.store import RunRecord
from flows.context import StageSelection
from flows.run_log import line_of
from flows.runner import Runner
from flows.tracking import StageEvent
from flows.without_prefect import run_without_prefect
from tests.support.flows.toy_pipeline import ForkingLauncher, World, run_toy, toy_context
from tests.support.launching.freezing import WORDS, watch_of

END_S = 20


@pytest.mark.parametrize(("code", "kind"), [(64, Refused), (65, Infeasible), (75, TryAgain)])
def test_a_failing_stage_keeps_its_words_and_its_exit_code(
    world: World, root: Path, code: int, kind: type[FleetuneError]
) -> None:
    """The run ends with the stage's error, run.json names stage and reason, and earlier outputs stay."""
    world.set("fail-learn", str(code))
    with pytest.raises(kind, match="^learn cannot go on, as the world has it$"):
        run_toy(root, world.config())
    (record,) = toy_context(root).store.runs.all()
    state = "failed" if kind is TryAgain else "refused"
    assert (record.state, record.exit_code, record.error) == (state, code, "learn cannot go on, as the world has it")
    states = {stage.stage: stage.state for stage in record.stages}
    assert states == {"measure": "done", "shape": "done", "learn": "failed", "watch": "stopped", "score": "waiting"}
    assert world.started() == ["shape", "learn"]
    world.clear("fail-learn")
    again = run_toy(root, world.config())
    assert again.stage("learn").why == f"ran: {record.id} did not finish it"
    assert world.started() == ["learn", "score"]


@pytest.mark.parametrize("stage", ["shape", "watch"])
def test_a_stage_that_freezes_ends_its_run_as_one_that_dies(world: World, root: Path, stage: str) -> None:
    """Bug: a stopped process of a stage held its run for ever, and with it the stage's lock. It is named, and the next
    run goes on; so is a stage that follows another one, beside it and after it.
    """
    world.set(f"freeze-{stage}", "")
    frozen = replace(toy_context(root), launcher=ForkingLauncher(watch_of(1.0, 1.5)))
    with pytest.raises(TryAgain, match=f"^stage {stage} {WORDS}"):
        run_without_prefect(Runner(frozen, world.config(), StageSelection()))
    (record,) = toy_context(root).store.runs.all()
    assert (record.state, record.exit_code, record.stage(stage).state) == ("failed", 75, "failed")
    world.clear(f"freeze-{stage}")
    assert run_toy(root, world.config()).state == "done"


def test_a_store_that_runs_full_is_one_sentence(world: World, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a full store ended in an OSError without a record; the error names the disk, and so does run.json."""
    setup = toy_context(root)

    def full(kind: str, folder: Path, **_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", str(root / "artifacts" / kind))

    monkeypatch.setattr(setup.store, "put", full)
    with pytest.raises(TryAgain, match=f"^the disk of {root}.* has no room for this: .*--root"):
        run_without_prefect(Runner(setup, world.config(), StageSelection()))
    record = toy_context(root).store.runs.load("latest")
    assert (record.state, record.stage("measure").state) == ("failed", "failed")
    assert record.error.startswith(f"the disk of {root}")


def test_a_disk_that_takes_no_record_hides_nothing(world: World, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the error of writing the record replaced the stage's own error."""
    setup = toy_context(root)
    world.set("fail-shape", "65")
    save = setup.store.runs.save

    def full(record: RunRecord) -> None:
        if "failed" in (record.state, *(stage.state for stage in record.stages)):
            raise OSError(errno.ENOSPC, "No space left on device")
        save(record)

    monkeypatch.setattr(setup.store.runs, "save", full)
    with pytest.raises(Infeasible, match="^shape cannot go on, as the world has it$"):
        run_without_prefect(Runner(setup, world.config(), StageSelection()))
    assert toy_context(root).store.runs.load("latest").state == "interrupted"


@pytest.mark.parametrize("stage", ["measure", "shape", "learn", "watch", "score"])
def test_a_run_killed_in_any_stage_is_finished_by_the_next(
    world: World, root: Path, tmp_path: Path, stage: str
) -> None:
    """SIGKILL of the flow ends its stage too, and the next run starts only missing stages, on the work that is left."""
    world.set(f"stop-{stage}", "")
    json_io.write(world.config(), tmp_path / "config.json")
    command = [
        sys.executable,
        "-m",
        "tests.support.flows.toy_pipeline",
        "--run",
        str(tmp_path / "config.json"),
        str(root),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as flow:
        process = psutil.Process(int((world.folder / "here").read_text()))  # a pipe: waits until the stage is there
        flow.kill()
        flow.wait()
        gone, alive = psutil.wait_procs([process], timeout=END_S)
    assert not alive
    store = toy_context(root).store
    killed = store.runs.load("latest")
    assert killed.state == "interrupted"
    # By keys: the kill may come after a stage's outputs were stored and before the record says so.
    stored = [name for name in world.started() if store.find(killed.stage(name).key) is not None]
    world.clear(f"stop-{stage}")
    record = run_toy(root, world.config())
    assert record.state == "done" and all(one.state == "done" for one in record.stages)
    assert stage not in stored
    assert world.started() == [name for name in ("shape", "learn", "score") if name not in stored]
    if stage in ("shape", "learn", "score"):
        assert record.stage(stage).why == f"ran: {killed.id} did not finish it"


@pytest.mark.parametrize("stage", ["shape", "learn"])
def test_a_stopped_run_leaves_no_process_and_says_stopped(world: World, root: Path, stage: str) -> None:
    """`stop` ends the run and its running stages at once; nothing of it counts as failed, in the log or the record."""
    world.set(f"stop-{stage}", "")
    events: list[StageEvent] = []
    runner = Runner(replace(toy_context(root), listen=events.append), world.config(), StageSelection())
    ended: list[BaseException] = []

    def run_it() -> None:
        try:
            run_without_prefect(runner)
        except FleetuneError as error:
            ended.append(error)

    thread = threading.Thread(target=run_it)
    thread.start()
    process = psutil.Process(int((world.folder / "here").read_text()))
    runner.stop()
    thread.join(END_S)
    assert not thread.is_alive() and not psutil.wait_procs([process], timeout=END_S)[1]
    assert isinstance(ended[0], TryAgain)
    told = ("told to end", "was stopped with its run")  # the latter where the flow has not begun to listen to it yet
    assert any(words in str(ended[0]) for words in told)
    record = toy_context(root).store.runs.load("latest")
    assert (record.state, record.exit_code, record.error) == ("interrupted", 75, str(ended[0]))
    stopped = {"shape": ["shape"], "learn": ["learn", "watch"]}[stage]
    assert [one.stage for one in record.stages if one.state == "stopped"] == stopped
    assert sorted(event.stage for event in events if event.kind == "stopped") == stopped
    assert not [event for event in events if event.kind == "failed" or "could not follow" in event.text]
    (said,) = (line_of(event) for event in events if event.kind == "stopped" and event.stage == stage)
    assert said.startswith(f"{stage}: stopped after") and any(words in said for words in told) and "failed" not in said


def test_two_runs_at_once_do_the_work_once(world: World, root: Path) -> None:
    """Both runs finish with the same artifacts, and every stage with a key ran once."""
    records = []

    def run_it() -> None:
        records.append(run_toy(root, world.config()))

    threads = [threading.Thread(target=run_it) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(world.started()) == ["learn", "score", "shape"]
    assert records[0].outputs == records[1].outputs
