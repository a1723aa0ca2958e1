"""A small random configuration of any model type of transformers, made from the type's own default.

Widths, depths and counts are known by the names of settings, since transformers has no list of them. Settings that are
derived from others (such as the kind of each layer) are left out, so that the configuration class derives them anew.
"""

import re
from typing import Any

from transformers import AutoConfig

from benchmarks.families.overrides import OVERRIDES

VOCABULARY = 320
POSITIONS = 64
WIDTH, HEADS, LAYERS, EXPERTS = 32, 4, 2, 4
SIZES: tuple[tuple[str, int], ...] = (
    (r"(.*_)?vocab_size(_.*)?|vocab_dim", VOCABULARY),
    (r"(num_|n_)?(hidden_|encoder_|decoder_|transformer_|mamba_)?(layers?|blocks)|n_layers?|(en|de)coder_layers|"
     r"num_(en|de)coder_layers|num_hidden_layers|depth|num_layers_per_block|n_blocks", LAYERS),
    (r"(.*_)?num_(key_value|kv)_heads|n_kv_heads|num_global_key_value_heads", 2),
    (r"(num_|n_)(.*_)?heads?|(en|de)coder_attention_heads|attention_heads|mamba_n_heads|nhead", HEADS),
    (r"(.*_)?head_dim|d_kv|(.*_)?head_size|d_head|mamba_d_head|v_head_dim|kv_channels", WIDTH // HEADS),
    (r"qk_(rope|nope)_head_dim|rotary_dim|(q|kv)_lora_rank|(.*_)?lora_rank|(.*_)?rank", WIDTH // HEADS),
    (r"(.*_)?(intermediate_size|ffn_dim|d_ff|ffn_hidden_size|n_inner|inner_dim|mlp_dim|intermediate_dim)(_.*)?", 64),
    (r"(.*_)?(hidden_size|d_model|n_embd|embed_dim|embedding_size|hidden_dim|d_embed|lru_width|dim|width|"
     r"d_inner|emb_dim|embed_size|state_size|d_state)(_.*)?", WIDTH),
    (r"(.*_)?(num_experts_per_tok|moe_topk|moe_top_k|top_k_experts|experts_per_token|moe_k)", 2),
    (r"(.*_)?((num|n)_(.*_)?experts?|num_local_experts)", EXPERTS),
    (r"n_group|num_expert_groups|topk_group", 1),
    (r"(max_|n_)(.*_)?(positions?|position_embeddings|seq_len|ctx|length|seq_length)|block_size|context_length",
     POSITIONS),
    (r"image_size|img_size|input_size", 32),
    (r"patch_size", 4),
    (r"(.*_)?(window_size|sliding_window|chunk_size)", 16),
)  # fmt: skip
TOKEN = re.compile(r".*_token_(id|index)|.*_token_id_.*")
LISTS: tuple[tuple[str, Any], ...] = (
    (r"(num_)?depths|layers", 1),
    (r"(.*_)?(hidden_sizes|embed_dims?|embed_dim|dims|neck_hidden_sizes|hidden_channels|out_channels)", 8),
)
MODEL_TYPE = "model_type"


def small_config(model_type: str) -> dict[str, Any]:
    """Return the settings of a small model of a type."""
    changes = small_changes(AutoConfig.for_model(model_type))
    return {**changes, **OVERRIDES.get(model_type, {}), MODEL_TYPE: model_type}


def small_changes(default: Any) -> dict[str, Any]:
    """Return the settings, nested as in the configuration, that make a default configuration small."""
    found: dict[str, Any] = {}
    nested = tuple(getattr(default, "sub_configs", {}) or {})
    for key, value in default.to_dict().items():
        inner = getattr(default, key, None) if key in nested else None
        if inner is not None and hasattr(inner, "to_dict"):
            found[key] = {**small_changes(inner), MODEL_TYPE: inner.model_type}
        elif isinstance(value, int) and not isinstance(value, bool):
            smaller = _smaller(key, value)
            if smaller != value:
                found[key] = smaller
        elif isinstance(value, list) and value and all(isinstance(item, int) for item in value):
            size = next((size for pattern, size in LISTS if re.fullmatch(pattern, key)), None)
            if size is not None:
                found[key] = [size if size == 1 else size * (at + 1) for at in range(len(value))]
    if "kv_lora_rank" in default.to_dict():  # latent attention has as many heads of keys as of queries
        found["num_key_value_heads"] = HEADS
    return found


def _smaller(key: str, value: int) -> int:
    if TOKEN.fullmatch(key):
        return value if value < VOCABULARY else VOCABULARY - 1 - value % 64
    for pattern, size in SIZES:
        if re.fullmatch(pattern, key):
            return min(value, size) if value > 0 else value
    return value
