"""A small run file, and the command line in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROUNDS = 16
CONFIG: dict[str, Any] = {
    "name": "small",
    "seed": 4,
    "fleet": {"devices": [{"name": "a", "emulate": {"cores": 0.6}}, {"name": "b", "emulate": {"cores": 0.4}}]},
    "model": {
        "task": "sequence-classification",
        "config": {
            "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
            "intermediate_size": 64, "vocab_size": 300,
        },
    },
    "data": {"source": "rows.jsonl", "max_length": 32},
    "training": {"rounds": ROUNDS, "batch_samples": 16, "micro_batch_samples": 4, "checkpoint_every_rounds": 2},
    "strategy": {"name": "pp"},
}  # fmt: skip


def write_run_file(folder: Path) -> Path:
    """Write the run file, with its own small data set beside it."""
    rows = [
        {"text": f"{i} {word} " * (1 + i % 4), "label": word} for i in range(40) for word in ("red", "green", "blue")
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


def command(*arguments: str) -> list[str]:
    """The command line of `fleetune`."""
    return [sys.executable, "-c", "from flows.cli import main; main()", *arguments]


def fleetune(*arguments: str) -> dict[str, Any]:
    """Run the command line and read the JSON document it prints."""
    done = subprocess.run(command(*arguments, "--json"), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def whys(document: dict[str, Any]) -> dict[str, str]:
    """stage -> why it ran or was reused."""
    return {stage["stage"]: stage["why"] for stage in document["run"]["stages"]}
