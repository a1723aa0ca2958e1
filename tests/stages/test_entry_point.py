"""Output and exit codes of a stage's process."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Device, Fleet, ModelSpeed, SimulatedDevice
from fleetune.contracts.task import StageTask
from fleetune.launching.docker.cleanup import Reaper, ReaperTask
from stages import entry_point
from tests.support.links.ends import until

END_S = 120
MISBEHAVING = "tests.support.stages.misbehaving_stage"


def write_task(folder: Path, how: str) -> Path:
    """A task file for the misbehaving stage."""
    task = StageTask(
        stage="misbehave", run="r", seed=0, config={"how": how}, inputs={}, output=str(folder / "out"), work=str(folder)
    )
    json_io.write(task, folder / "task.json")
    return folder / "task.json"


def run_process(*arguments: str, module: str = MISBEHAVING) -> tuple[int, list[dict[str, object]], str]:
    """Run a stage; its exit code, stdout as JSON objects, and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, timeout=END_S, check=False
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_a_stage_that_ends_well_speaks_json_only(tmp_path: Path) -> None:
    """stdout holds progress and notes only, output of libraries goes to the log, and the exit code is 0."""
    code, events, log = run_process("--task", str(write_task(tmp_path, "well")))
    assert code == 0
    assert events == [
        {"event": "progress", "what": "oddities", "done": 1, "total": 3, "unit": "steps"},
        {"event": "note", "text": "a remark"},
    ]
    assert log.splitlines() == ["a library prints", "so does a C library"]
    assert (tmp_path / "out" / "thing" / "thing.txt").read_text() == "made"


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        ("refused", 64, "given 3, allowed are 1 and 2, choose one"),
        ("infeasible", 65, "device a lacks 3 bytes"),
        ("try again", 75, "device a left"),
        ("no input", 64, "task: misbehave needs input fleet; given are none"),
    ],
)
def test_an_error_is_the_last_line_and_the_exit_code(tmp_path: Path, how: str, code: int, message: str) -> None:
    """An error is one sentence on the last line, without a traceback."""
    found, events, log = run_process("--task", str(write_task(tmp_path, how)))
    assert (found, events[-1]) == (code, {"event": "error", "message": message})
    assert "Traceback" not in log


def test_the_unexpected_is_one_sentence_and_a_traceback_in_the_log(tmp_path: Path) -> None:
    """An unexpected exception is one sentence with exit code 75; its traceback is on stderr."""
    code, events, log = run_process("--task", str(write_task(tmp_path, "unexpected")))
    assert code == 75
    assert str(events[-1]["message"]).startswith("the stage failed unexpectedly (KeyError: 'a key nobody thought of')")
    assert "Traceback" in log and "raise RAISED[how]" in log


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    """Bug: a full disk was an unforeseen OSError; the message names the disk of the work folder and the remedy."""
    code, events, _ = run_process("--task", str(write_task(tmp_path, "full disk")))
    assert code == 75
    message = str(events[-1]["message"])
    assert message.startswith(f"the disk of {tmp_path} (mounted at /") and " free of " in message
    assert message.endswith(
        "has no room for this: make room there or give another folder with --root, then start again"
    )


def test_an_error_is_told_though_the_log_lies_on_a_full_disk(tmp_path: Path) -> None:
    """The error is reported although its traceback cannot be written to the full disk of the log."""
    task = write_task(tmp_path, "unexpected")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", MISBEHAVING, "--task", str(task)],
            stdout=subprocess.PIPE,
            stderr=full,
            timeout=END_S,
            check=False,
        )
    assert done.returncode == 75
    event = json.loads(done.stdout.splitlines()[-1])
    assert event["event"] == "error" and "has no room for this" in event["message"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "usage: python -m stages.NAME --task task.json"),
        (("--task",), "usage: python -m stages.NAME --task task.json"),
        (("--task", "nowhere.json"), "nowhere.json: cannot be read"),
        (("--task", "x", "--more"), "argument '--more' is unknown"),
    ],
)
def test_bad_usage_is_refused(arguments: tuple[str, ...], said: str) -> None:
    """Wrong arguments end in one sentence and exit code 64, before anything is done."""
    code, events, _ = run_process(*arguments)
    assert code == 64
    assert [event["event"] for event in events] == ["error"]
    assert said in str(events[0]["message"])


def test_a_task_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    """The message names the unknown key."""
    path = write_task(tmp_path, "well")
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": 3}))
    code, events, _ = run_process("--task", str(path))
    assert code == 64 and "colour: unknown key" in str(events[-1]["message"])


def test_sigterm_ends_the_stage_and_its_children(tmp_path: Path) -> None:
    """SIGTERM ends the stage and its children with exit code 75 and a sentence."""
    command = [
        sys.executable,
        "-m",
        MISBEHAVING,
        "--task",
        str(write_task(tmp_path, "wait")),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as stage:
        assert stage.stdout is not None
        lines = (json.loads(line) for line in stage.stdout)
        said = next(line["text"] for line in lines if str(line.get("text")).startswith("child"))
        child = psutil.Process(int(said.split()[1]))
        stage.send_signal(signal.SIGTERM)
        last = list(lines)[-1]
        assert stage.wait(END_S) == 75
    assert last == {
        "event": "error",
        "message": "the stage was told to end before it was done; run it again to go on",
    }
    assert not psutil.wait_procs([child], timeout=END_S)[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stage_that_has_something_to_keep_keeps_it_first(tmp_path: Path, number: int) -> None:
    """SIGTERM and Ctrl-C, even twice, interrupt no deferring context; the stage ends when that has ended."""
    command = [
        sys.executable,
        "-m",
        MISBEHAVING,
        "--task",
        str(write_task(tmp_path, "defer")),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as stage:
        assert stage.stdout is not None
        lines = (json.loads(line) for line in stage.stdout)
        next(line for line in lines if line.get("text") == "busy")
        stage.send_signal(number)
        stage.send_signal(number)
        last = list(lines)[-2:]
        assert stage.wait(END_S) == 75
    assert last[0] == {"event": "note", "text": "kept"} and last[1]["event"] == "error"
    assert not (tmp_path / "out" / "thing").exists()


def test_training_on_devices_that_are_not_there_is_refused(tmp_path: Path) -> None:
    """`train` refuses a simulated fleet before it reads anything else, and names the option that ends earlier."""
    simulated = SimulatedDevice(memory_bytes=1, speeds=(ModelSpeed(flops_per_s=1),))
    device = Device(name="nano-0", memory_bytes=1, cores=1, fingerprint="f", simulated=simulated)
    json_io.write(Fleet(devices=(device,)), tmp_path / "fleet.json")
    task = StageTask(
        stage="train", run="r", seed=0, config={}, inputs={"fleet": str(tmp_path)}, output=str(tmp_path), work="w"
    )
    json_io.write(task, tmp_path / "task.json")
    code, events, _ = run_process("--task", str(tmp_path / "task.json"), module="stages.train")
    assert code == 64
    assert events[-1]["message"] == "device nano-0 is simulated: a run with it ends after plan; use --until plan"


def test_a_stage_knows_its_reaper_by_its_command_line() -> None:
    """Bug: a rename broke the suffix by which a stage found its reaper, which it must not stop; other children end."""
    before = psutil.Process().children()
    reaper = Reaper(ReaperTask(token="t", engines=(), local=False))
    try:
        (started,) = set(psutil.Process().children()) - set(before)
        until(lambda: started.cmdline())  # Linux tells of a process's start before its command line is there
        assert entry_point.outlives_stage(started)
        assert not entry_point.outlives_stage(psutil.Process())
    finally:
        reaper.dismiss()
