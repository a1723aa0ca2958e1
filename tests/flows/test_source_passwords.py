"""Passwords in the sources of data and models."""

import json
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.run_config import RunConfig
from fleetune.errors import Refused
from flows import configs


@pytest.mark.parametrize(
    "url", ["s3://ann:hush@host/x.csv", "https://ann:hush@host/x.csv", "filecache::hf://ann:hush@x/y"]
)
@pytest.mark.parametrize("key", ["model.source", "model.lora.start", "data.source", "data.validation", "data.files"])
def test_a_source_that_holds_one(key: str, url: str, tmp_path: Path) -> None:
    """Bug: the run file was accepted, and its password stood in run.json, in pages and in messages."""
    model = {"task": "causal-lm", "config": {"model_type": "llama"}, "lora": {"targets": ["q_proj"]}}
    plain: dict[str, Any] = {"name": "x", "model": model, "data": {"source": "digits"}, "training": {"rounds": 1}}
    *sections, last = key.split(".")
    place = plain
    for section in sections:
        place = place[section]
    place[last] = [url] if last == "files" else url
    if last == "files":
        del place["source"]
    (tmp_path / "run.yaml").write_text(json.dumps(plain))
    for load in (lambda: configs.load(tmp_path / "run.yaml"), lambda: json_io.load(RunConfig, plain, "run")):
        with pytest.raises(Refused, match="the URL holds a password") as refused:
            load()
        assert "hush" not in str(refused.value)
