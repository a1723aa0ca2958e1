"""A whole training from a notebook's cell: real stages and devices, without Prefect."""

import subprocess
import sys
from pathlib import Path

from tests.support.whole.pipelines import fleetune, whys

EIGHT_LINES = """
import fleetune
run = fleetune.train({config!r}, root={root!r}, rounds=4)
assert list(run.losses.index) == [0, 1, 2, 3] and run.losses.loss.notna().all()
assert run.scores.loc["accuracy", "after"] >= 0 and run.report.is_file()
from transformers import AutoModelForSequenceClassification
model = AutoModelForSequenceClassification.from_pretrained(run.export({out!r}))
print(run, sorted(model.config.id2label.values()))
import sys; assert "prefect" not in sys.modules
"""


def test_eight_lines_train_a_model_that_transformers_loads(config: Path, tmp_path: Path) -> None:
    """From stdin, without Prefect; its curves are TensorBoard's, and the command line reuses all that it has made."""
    root = tmp_path / "runs"
    cell = EIGHT_LINES.format(config=str(config), root=str(root), out=str(tmp_path / "out"))
    done = subprocess.run([sys.executable, "-"], input=cell, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "['blue', 'green', 'red']" in done.stdout and "train     done" in done.stdout
    assert len(list((root / "tensorboard").glob("*/events.out.tfevents.*"))) == 1
    again = whys(fleetune("run", str(config), "--root", str(root), "--set", "training.rounds=4", "--dry-run"))
    assert all(again[stage].startswith("reused") for stage in ("prepare", "profile", "plan", "train"))
