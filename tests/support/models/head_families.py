"""Tiny models whose attention has several heads."""

from fleetune.contracts.run_config import Lora
from tests.support.training.model_families import IMAGE, LANGUAGE, TEXT, Family

FOUR = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 70,
    "initializer_range": 0.2,
}  # fmt: skip
FAMILIES = (
    Family("vit", IMAGE, {"model_type": "vit", "image_size": 16, "patch_size": 4, **FOUR}),
    Family("bert", TEXT, {"model_type": "bert", "vocab_size": 300, **FOUR}),
    Family("distilbert", TEXT, {
        "model_type": "distilbert", "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 70, "vocab_size": 300,
        "initializer_range": 0.2,
    }),
    Family("gpt2", LANGUAGE, {
        "model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 70, "vocab_size": 300,
        "initializer_range": 0.2,
    }),
    Family("llama", LANGUAGE, {"model_type": "llama", "vocab_size": 300, **FOUR}),
    Family("llama, shared keys", LANGUAGE, {
        "model_type": "llama", "num_key_value_heads": 2, "vocab_size": 300, **FOUR,
    }),
    Family("qwen3, wide heads", LANGUAGE, {
        "model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 24, "vocab_size": 300, **FOUR,
    }),
)  # fmt: skip
HEADS = {"llama, shared keys": 2, "qwen3, wide heads": 2}
LORA = Lora(r=3, targets=r".*(query|value|q_proj|v_proj|q_lin|v_lin|c_attn|fc1|c_fc|fc2|down_proj)")
