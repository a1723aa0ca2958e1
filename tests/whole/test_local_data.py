"""A run from the command line whose data lie on two of its three devices."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fleetune.contracts.input_spec import InputSpec
from fleetune.data.tokenization import encode, open_tokenizer
from tests.support.training.planted import SECRET, found_in, spellings, text_spellings
from tests.support.whole.pipelines import CONFIG, fleetune, whys
from tests.support.whole.sources import source


def test_a_run_trains_on_data_of_its_devices_and_keeps_nothing_of_them(tmp_path: Path) -> None:
    """Two clients with different labels: the store holds none of their samples, and a changed row is noticed."""
    held_out = ({"text": f"{k} {word}", "label": word} for k in range(10) for word in ("red", "blue"))
    (tmp_path / "held-out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held_out))
    local = {"x": source(tmp_path / "x.jsonl", "green blue", 20), "y": source(tmp_path / "y.jsonl", "red", 5)}
    config: dict[str, Any] = {
        **CONFIG,
        "fleet": {"devices": [{"name": name} for name in ("s", "x", "y")]},
        "data": {"source": "held-out.jsonl", "local": local, "max_length": 32},
        "training": {"rounds": 2, "batch_samples": 8, "micro_batch_samples": 4},
        "strategy": {"name": "split-learning"},
    }
    run_file, root = tmp_path / "small.yaml", tmp_path / "runs"
    run_file.write_text(yaml.safe_dump(config))
    arguments = ("run", str(run_file), "--root", str(root), "--until", "train")
    trained = fleetune(*arguments)
    assert all(why.startswith("ran") for why in whys(trained).values())
    digest = next(stage for stage in trained["run"]["stages"] if stage["stage"] == "prepare")["outputs"]["data"]
    prepared = json.loads((root / "artifacts" / "data" / digest / "data.json").read_text())
    assert prepared["labels"] == ["blue", "green", "red"]
    assert [(each["device"], each["samples"]) for each in prepared["local"]["sources"]] == [("x", 20), ("y", 5)]

    ids, *_ = encode(open_tokenizer(InputSpec(task="sequence-classification")), [SECRET], 32)
    planted = {"text": list(text_spellings(SECRET)), "tokens": list(spellings(np.array(ids[0][1 : len(SECRET)])))}
    kept = [file for file in root.rglob("*") if file.is_file()]
    assert any(file.name == "model.safetensors" for file in kept), "the trained model is there"
    assert not [file for file in kept if found_in(file.read_bytes(), planted)]

    assert whys(fleetune(*arguments, "--dry-run"))["train"].startswith("reused")
    with (tmp_path / "y.jsonl").open("a") as file:
        file.write(json.dumps({"text": "more", "label": "red"}) + "\n")
    assert whys(fleetune(*arguments, "--dry-run"))["prepare"] == "ran: local data changed"
