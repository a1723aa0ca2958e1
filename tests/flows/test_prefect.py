"""The same rules with Prefect around them: one process, its embedded server, nothing left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.flows.toy_pipeline import World, toy_context

END_S = 180


def command(world: World, root: Path) -> list[str]:
    """Warnings are errors there too."""
    return [sys.executable, "-W", "error", "-m", "tests.flows.through_prefect", str(world.folder), str(root)]


@pytest.mark.slow
def test_the_flow_on_the_embedded_server(world: World, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, it takes server and stage along; run again, it ends and shows reuse as Cached and errors in a word."""
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    world.set("stop-shape", "")
    with subprocess.Popen(command(world, root), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as flow:
        stage = psutil.Process(int((world.folder / "here").read_text()))
        children = psutil.Process(flow.pid).children(recursive=True)
        flow.kill()
        flow.wait()
    assert len(children) >= 2 and stage in children, "the server and the stage"
    assert not psutil.wait_procs(children, timeout=END_S)[1]
    world.clear("stop-shape")
    world.started()

    done = subprocess.run(command(world, root), capture_output=True, text=True, timeout=END_S, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    stages = ("measure", "shape", "learn", "watch", "score")
    assert told["first"] == dict.fromkeys(stages, "Completed")
    assert told["second"] == {**told["first"], "shape": "Cached", "learn": "Cached", "score": "Cached"}
    assert told["error"] == [65, "score cannot go on, as the world has it"]
    assert told["flow states"].count("Completed") == 2 and told["flow states"].count("Failed") == 1
    assert done.stderr == "", "nothing but what listeners hear"
    assert [run.state for run in toy_context(root).store.runs.all()] == ["failed", "done", "done", "interrupted"]
