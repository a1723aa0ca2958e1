"""The whole pipeline as a user runs it: real stages, real devices, the command line."""

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.support.whole.pipelines import CONFIG, ROUNDS, command, fleetune, whys, write_run_file


def checkpoint_of(document: dict[str, Any], root: Path) -> bytes:
    """The bytes of the trained model."""
    digest = next(s for s in document["run"]["stages"] if s["stage"] == "train")["outputs"]["checkpoint"]
    return (root / "artifacts" / "checkpoint" / digest / "model" / "model.safetensors").read_bytes()


def wait_until(happened: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Look until something has happened; fails when the process ends first or after two minutes."""
    give_up_s = time.monotonic() + 120
    while not happened():
        assert process.poll() is None and time.monotonic() < give_up_s
        threading.Event().wait(0.02)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the module's run file, its data and its stores."""
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def config(folder: Path) -> Path:
    """The run file."""
    return write_run_file(folder)


@pytest.fixture(scope="module")
def killed(folder: Path, config: Path) -> Path:
    """The store of a run that was killed while it trained, with at least one checkpoint."""
    root = folder / "killed"
    process = subprocess.Popen(command("run", str(config), "--root", str(root)), stdout=subprocess.DEVNULL)
    wait_until(lambda: any(root.glob("work/*/checkpoints/round-*/round.json")), process)
    stages = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    psutil.wait_procs(stages)  # they die with it, and write files until then
    return root


@pytest.fixture(scope="module")
def whole(folder: Path, config: Path, killed: Path) -> tuple[Path, bytes]:
    """The store of a run that nothing befell in training, and the model that it trained."""
    root = folder / "whole"
    shutil.copytree(killed, root)
    shutil.rmtree(root / "work")  # nothing of the killed training is left
    first = fleetune("run", str(config), "--root", str(root))
    assert "goes on" not in whys(first)["train"]
    return root, checkpoint_of(first, root)


def test_a_killed_run_is_finished(config: Path, killed: Path, whole: tuple[Path, bytes], tmp_path: Path) -> None:
    """kill -9 costs no bit, and the finished run has its receipt, which holds."""
    shutil.copytree(killed, root := tmp_path / "runs")
    finished = fleetune("run", str(config), "--root", str(root))
    verified = subprocess.run(command("verify", "--root", str(root)), capture_output=True, text=True, check=False)
    assert verified.returncode == 0 and "its receipt holds: base, data, code, config" in verified.stdout, verified
    assert whys(finished)["profile"].startswith("reused")
    assert re.fullmatch(
        rf".* did not finish it; goes on from round \d*[02468] of {ROUNDS}, .*", whys(finished)["train"]
    )
    assert checkpoint_of(finished, root) == whole[1]


KEPT = ("prepare", "profile", "plan", "train", "evaluate")


def test_a_run_is_reused_but_for_what_has_changed(config: Path, whole: tuple[Path, bytes]) -> None:
    """A second run trains nothing; a byte of data or a setting reruns what depends on it."""
    root = whole[0]
    again = whys(fleetune("run", str(config), "--root", str(root)))
    assert {stage: again[stage] for stage in KEPT if not again[stage].startswith("reused")} == {}
    slower = fleetune("run", str(config), "--root", str(root), "--dry-run", "--set", "training.learning_rate=1e-4")
    assert whys(slower)["train"] == "ran: training.learning_rate changed"
    assert whys(slower)["plan"].startswith("reused")
    rows = config.with_name("rows.jsonl")
    text = rows.read_bytes()
    rows.write_bytes(text.replace(b"0 red", b"9 red", 1))
    try:
        edited = fleetune("run", str(config), "--root", str(root), "--dry-run")
    finally:
        rows.write_bytes(text)
    assert whys(edited)["prepare"] == "ran: data changed"


def test_a_killed_run_is_finished_by_another_fleet(
    config: Path, killed: Path, whole: tuple[Path, bytes], tmp_path: Path
) -> None:
    """What has to be planned anew for the devices that are left once began to train at round 0."""
    shutil.copytree(killed, root := tmp_path / "runs")
    alone = config.with_name("alone.yaml")
    alone.write_text(yaml.safe_dump({**CONFIG, "fleet": {"devices": CONFIG["fleet"]["devices"][:1]}}))
    planned_anew = fleetune("run", str(alone), "--root", str(root), "--until", "train")
    said = rf"ran: input .*; goes on from round \d*[02468] of {ROUNDS}, by another plan's checkpoint"
    assert re.fullmatch(said, whys(planned_anew)["train"])
    assert whys(planned_anew)["prepare"].startswith("reused"), "another fleet prepares nothing anew"
    assert checkpoint_of(planned_anew, root) == whole[1]
