"""Settings of small configurations that names alone do not give, by model type."""

from typing import Any

_MOE = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
_HYBRID = ["linear_attention", "full_attention"]
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_n_heads": 4, "mamba_d_head": 16, "attn_layer_indices": [1]},
    "bit": {"num_groups": 4},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    "donut-swin": {"embed_dim": 12, "depths": [1, 1], "num_heads": [2, 4]},
    "dots1": _MOE,
    "efficientnet": {
        "image_size": 64, "width_coefficient": 0.1, "depth_coefficient": 0.2, "hidden_dim": 128,
        "initializer_range": 0.3, "strides": [1, 2, 2, 1, 1, 1, 1],
    },
    "esm": {"vocab_size": 320, "pad_token_id": 0, "mask_token_id": 4},
    "esmc": {"num_key_value_heads": 4},
    "gemma3n_text": {"num_kv_shared_layers": 0, "layer_types": ["sliding_attention", "full_attention"],
                     "activation_sparsity_pattern": [0.0, 0.0]},
    "gemma4_assistant": {"text_config": {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0}},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "granitemoehybrid": {"mamba_n_heads": 4, "mamba_d_head": 16, "layer_types": _HYBRID},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8, "num_experts": 4, "moe_topk": 2},
    "levit": {"hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 3, 4], "depths": [1, 1, 1],
              "key_dim": [8, 8, 8], "image_size": 64},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1},
    "ministral": {"head_dim": 8},
    "mobilenet_v1": {"depth_multiplier": 0.25, "min_depth": 8},
    "mobilenet_v2": {"depth_multiplier": 0.1, "min_depth": 8, "output_stride": 8},
    "musicgen": {},
    "nemotron": {"num_key_value_heads": 2},
    "perceiver": {"num_latents": 8, "d_latents": 32, "num_self_attends_per_block": 2, "num_blocks": 1},
    "reformer": {
        "is_decoder": True, "axial_pos_embds": False, "attn_layers": ["local", "lsh"], "num_buckets": 2,
        "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "feed_forward_size": 64,
    },
    "swin": {"embed_dim": 12, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4},
    "swinv2": {"embed_dim": 12, "depths": [1, 1], "num_heads": [2, 4]},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"], "attention_hidden_size": 64,
              "attention_head_dim": 16, "n_mamba_heads": 2, "mamba_dt_rank": 4},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"], "attention_hidden_size": 64,
               "attention_head_dim": 16, "n_mamba_heads": 4, "mamba_headdim": 16},
}  # fmt: skip
