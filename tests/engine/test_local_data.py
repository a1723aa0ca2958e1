"""Training on data that lie on the machines of the devices' engines."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetune.contracts.input_spec import InputSpec
from fleetune.data.tokenization import encode, open_tokenizer
from tests.support.engine.pipelines import PROCESSES, config, run
from tests.support.training.planted import SECRET, found_in, spellings, text_spellings
from tests.support.whole.pipelines import CONFIG
from tests.support.whole.sources import source


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for data and a store: devices prepare their data and are profiled once for all strategies."""
    return tmp_path_factory.mktemp("local")


@pytest.mark.parametrize("strategy", ["split-learning", "lola-deft"])
def test_containers_train_on_data_of_their_engines_machine(strategy: str, folder: Path) -> None:
    """Each device sees its own file, which is mounted for it alone; the store holds nothing of what is in them.

    Prepared arrays stay in a folder of the device's own from the stage that prepares to those that train.
    """
    held_out = ({"text": f"{k} {word}", "label": word} for k in range(10) for word in ("red", "blue"))
    (folder / "held-out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held_out))
    counts = {"nano": 20, "shed": 5}
    local = {d: str(folder / source(folder / f"{d}.jsonl", "red blue", n)) for d, n in counts.items()}
    changes: dict[str, Any] = {
        "model": CONFIG["model"],
        "data": {"source": "held-out.jsonl", "local": local, "max_length": 32},
        "training": {"rounds": 2, "batch_samples": 8, "micro_batch_samples": 4},
        "strategy": {"name": strategy},
    }
    told = run(config(folder, count=3, **changes, stages=PROCESSES), folder / "store", until="train")
    digest = told.record.outputs["data"]
    prepared = json.loads((told.store.folder("data", digest) / "data.json").read_text())
    assert {each["device"]: each["samples"] for each in prepared["local"]["sources"]} == counts
    ids, *_ = encode(open_tokenizer(InputSpec(task="sequence-classification")), [SECRET], 32)
    planted = {"text": list(text_spellings(SECRET)), "tokens": list(spellings(np.array(ids[0][1 : len(SECRET)])))}
    kept = [file for file in (folder / "store").rglob("*") if file.is_file()]
    assert any(file.name == "model.safetensors" for file in kept), "the trained model is there"
    assert not [file for file in kept if found_in(file.read_bytes(), planted)]
