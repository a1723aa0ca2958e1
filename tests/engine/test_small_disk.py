"""A disk that is full in the middle of a training; the small disk is that of a container."""

import json
import os
import re
import sysconfig
from pathlib import Path
from typing import Any

import yaml

from tests.support.engine import small_disk
from tests.support.engine.places import IMAGE
from tests.support.flows.service.training import CONFIG

PROJECT = Path(__file__).parents[2]


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(engine: Any, tmp_path: Path) -> None:
    """The error names the disk's room and the way out; nothing half-written takes room, and the next run goes on."""
    rows = [{"text": f"{i} {word}", "label": word} for i in range(40) for word in ("red", "green")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = {**CONFIG["training"], "rounds": 12, "checkpoint_every_rounds": 4}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({**CONFIG, "training": training}))
    packages = sysconfig.get_path("purelib")
    output = engine.containers.run(
        IMAGE,
        ["-P", "-m", small_disk.__name__, str(tmp_path / "small.yaml"), "/store"],
        environment={"PYTHONPATH": f"{PROJECT}:{packages}", "OMP_NUM_THREADS": "1"},
        volumes={str(path): {"bind": str(path), "mode": "ro"} for path in (PROJECT, Path(packages), tmp_path)},
        tmpfs={"/store": "size=64m"},
        network_mode="none",
        user=f"{os.getuid()}:{os.getgid()}",
        labels={"fleetune.test": "small-disk"},
        remove=True,
    )
    seen = json.loads(output.splitlines()[-1])
    assert "/round-000008: this checkpoint could not be written" in seen["said"], seen["said"]
    assert re.search(r"make room on that disk \([\d.]+ .?B free of 67\.1 MB\) and run again", seen["said"]), seen[
        "said"
    ]
    assert {name.partition("/")[0] for name in seen["left"]} == {"round-000004"}
    assert "goes on from round 4 of 12" in seen["why"]
