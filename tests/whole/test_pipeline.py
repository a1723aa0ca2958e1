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
import yaml

from tests.support.whole.pipelines import CONFIG, ROUNDS, command, fleetune, whys


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


def test_a_run_is_reused_and_a_killed_one_is_finished(config: Path, tmp_path: Path) -> None:
    """A second run trains nothing; a byte of data or a setting reruns what depends on it; kill -9 costs no bit.

    Neither does a device that is gone afterwards: what has to be planned anew once began to train at round 0.
    """
    root, whole, third = (tmp_path / name for name in ("runs", "whole", "third"))
    process = subprocess.Popen(command("run", str(config), "--root", str(root)), stdout=subprocess.DEVNULL)
    wait_until(lambda: any(root.glob("work/*/checkpoints/round-*/round.json")), process)
    stages = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    psutil.wait_procs(stages)  # they die with it, and write files until then
    for copy in (whole, third):
        shutil.copytree(root, copy)
    shutil.rmtree(whole / "work")  # nothing of its training is left
    finished = fleetune("run", str(config), "--root", str(root))
    assert whys(finished)["profile"].startswith("reused")
    assert re.fullmatch(
        rf".* did not finish it; goes on from round \d*[02468] of {ROUNDS}, .*", whys(finished)["train"]
    )
    first = fleetune("run", str(config), "--root", str(whole))
    assert "goes on" not in whys(first)["train"]
    assert checkpoint_of(finished, root) == checkpoint_of(first, whole)

    again = fleetune("run", str(config), "--root", str(root))
    assert all(whys(again)[stage].startswith("reused") for stage in ("prepare", "profile", "plan", "train", "evaluate"))
    slower = fleetune("run", str(config), "--root", str(root), "--dry-run", "--set", "training.learning_rate=1e-4")
    assert whys(slower)["train"] == "ran: training.learning_rate changed"
    assert whys(slower)["plan"].startswith("reused")
    text = (tmp_path / "rows.jsonl").read_bytes()
    (tmp_path / "rows.jsonl").write_bytes(text.replace(b"0 red", b"9 red", 1))
    edited = fleetune("run", str(config), "--root", str(root), "--dry-run")
    assert whys(edited)["prepare"] == "ran: data changed"
    (tmp_path / "rows.jsonl").write_bytes(text)

    alone = {**CONFIG, "fleet": {"devices": CONFIG["fleet"]["devices"][:1]}}
    config.write_text(yaml.safe_dump(alone))
    planned_anew = fleetune("run", str(config), "--root", str(third), "--until", "train")
    said = rf"ran: input .*; goes on from round \d*[02468] of {ROUNDS}, by another plan's checkpoint"
    assert re.fullmatch(said, whys(planned_anew)["train"])
    assert whys(planned_anew)["prepare"].startswith("reused"), "another fleet prepares nothing anew"
    assert checkpoint_of(planned_anew, third) == checkpoint_of(first, whole)
