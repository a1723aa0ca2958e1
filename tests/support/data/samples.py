"""Sample data and helpers shared by the data tests."""

import json
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.data.prepared_data import PreparedData
from fleetune.data.writer import prepare_data

TEXT = InputSpec(task="sequence-classification", vocab_size=260, max_positions=64)
CAUSAL = InputSpec(task="causal-lm", vocab_size=260, max_positions=64)
IMAGES = InputSpec(task="image-classification", image_size=8, channels=1)

FRUITS = [{"text": f"{fruit} number {n}", "label": fruit} for n in range(10) for fruit in ("pear", "apple")]


def json_lines(path: Path, rows: Sequence[Any]) -> Path:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def fake_stdlib(folder: Path, sources: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write source files to a new folder, which Python then says its standard library is in."""
    folder.mkdir()
    for name, text in sources.items():
        (folder / name).write_text(text)
    paths = {**sysconfig.get_paths(), "stdlib": str(folder)}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    return folder


def prepared(folder: Path, source: object, spec: InputSpec = TEXT, seed: int = 0, **changes: Any) -> PreparedData:
    """Prepare a source into a folder and open it."""
    request = DataRequest(source=str(source), **{"max_length": 24, **changes})
    prepare_data(request, spec, folder, seed)
    return PreparedData(folder)


def whole(data: PreparedData, split: str) -> Mapping[str, Any]:
    """Every row of a split."""
    return data.rows(split, range(data.size(split)))


def texts(data: PreparedData, split: str) -> list[str]:
    """Texts decoded from the byte-level ids of a split."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(data.tokenizer)
    return [tokenizer.decode(row, skip_special_tokens=True) for row in whole(data, split)["input_ids"]]


def every_byte(folder: Path) -> dict[str, bytes]:
    """Relative name -> content of every file."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
