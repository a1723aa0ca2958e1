"""The whole pipeline on a mixture of experts whose experts are adapted: from the run file to the model handed over."""

from pathlib import Path

import pytest
import torch
import yaml
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM

from benchmarks.families.small_configs import small_config
from fleetune.contracts.run_config import ModelRequest
from fleetune.models.source import configuration
from tests.support.whole.pipelines import CONFIG, fleetune, whys, write_run_file


@pytest.mark.filterwarnings("ignore")  # PEFT warns of its own settings for experts
def test_adapted_experts_are_trained_merged_and_verified(tmp_path: Path) -> None:
    """Bug: every run of Mixtral with `targets: all-linear` ended before it began. It trains on two devices, and the
    adapter and the merged folder, which is what the run trained, give the same logits, other than the base's."""
    request = ModelRequest(task="causal-lm", config=small_config("mixtral"))
    base = AutoModelForCausalLM.from_config(configuration(request)).eval()
    base.save_pretrained(tmp_path / "base")
    config, root = write_run_file(tmp_path), str(tmp_path / "runs")
    model = {"task": "causal-lm", "source": str(tmp_path / "base"), "lora": {"targets": "all-linear", "r": 2}}
    training = {**CONFIG["training"], "rounds": 2, "learning_rate": 0.01}
    config.write_text(yaml.safe_dump({**CONFIG, "model": model, "training": training}))
    assert {"train", "evaluate"} <= whys(fleetune("run", str(config), "--root", root)).keys()
    fleetune("export", "latest", "--to", str(tmp_path / "adapter"), "--root", root)
    fleetune("export", "latest", "--merge", "--to", str(tmp_path / "merged"), "--root", root)
    fleetune("verify", str(tmp_path / "merged"), "--root", root)
    ids = torch.arange(3, 23)[None]
    with torch.no_grad():
        adapted = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()(input_ids=ids).logits
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()(input_ids=ids).logits
        assert (adapted - base(input_ids=ids).logits).abs().max() > 1e-3
    assert torch.allclose(adapted, merged, atol=1e-5)
