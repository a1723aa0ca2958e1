"""Code that a model or data set brings along is never run."""

import ast
import json
from pathlib import Path

import pytest

from fleetune.contracts.run_config import ModelRequest
from fleetune.errors import Refused
from fleetune.models.source import configuration

ROOT = Path(__file__).parents[2]
LOADERS = {"from_pretrained", "from_config", "load_dataset"}
NO_CODE = {"PeftModel", "AutoHfQuantizer"}
"""Take a model that is loaded already, or settings, and no such argument."""
PACKAGES = ("benchmarks", "containers", "fleetune", "flows", "stages")


def silent(source: str) -> list[int]:
    """Lines of calls that load something by name and do not say `trust_remote_code=False`."""
    found = []
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        called = call.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        owner = getattr(called.value, "id", "") if isinstance(called, ast.Attribute) else ""
        said = {word.arg: getattr(word.value, "value", None) for word in call.keywords}
        if name in LOADERS and owner not in NO_CODE and said.get("trust_remote_code") is not False:
            found.append(call.lineno)
    return found


def test_every_loader_is_told_so() -> None:
    """Left out, the library asks at a terminal, and its defaults are its own: each call says it."""
    calls = [
        f"{path}:{line}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for line in silent(path.read_text())
    ]
    assert calls == []
    assert silent("AutoModel.from_pretrained(x)\nload_dataset(x, trust_remote_code=True)") == [1, 2]
    assert silent("PeftModel.from_pretrained(b, x)\nAuto.from_config(x, trust_remote_code=False)") == []


def test_a_model_with_code_of_its_own_is_refused(tmp_path: Path) -> None:
    """It is named, in one sentence, and not a line of it has run."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    settings = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(Refused, match=f"model: {tmp_path} has no usable config.json"):
        configuration(ModelRequest(source=str(tmp_path), task="causal-lm"))
    assert not (tmp_path / "mark").exists()
