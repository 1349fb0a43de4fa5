"""Geometries of public models, with the fields that their configs have, and figures worked out by hand from them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kvlayout.offline.deployment import Deployment
from kvlayout.offline.model import AttentionLayer, LatentLayer, Layer, Model, StateLayer
from kvlayout.offline.reading import read_model
from kvlayout.offline.serving import serve
from tests.offline.configs import encoded


def heads(architecture: str, kind: str, sizes: tuple[int, int, int, int], **more: Any) -> dict[str, Any]:
    """Return a config with what most have: layers, heads that ask, heads of keys, and the width."""
    layers, query, kv, hidden = sizes
    return {
        "architectures": [architecture],
        "model_type": kind,
        "num_hidden_layers": layers,
        "num_attention_heads": query,
        "num_key_value_heads": kv,
        "hidden_size": hidden,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    } | more


QWEN = {"rope_scaling": None, "use_sliding_window": False}
V3 = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rope_scaling": {"factor": 40, "original_max_position_embeddings": 4096, "type": "yarn"},
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}
NEMOTRON = {
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "attention_head_dim": 128,
    "mamba_head_dim": 64,
    "mamba_num_heads": 128,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "time_step_limit": [0.0, float("inf")],
}
KIMI_LAYERS = {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "kda_layers": [i for i in range(1, 27) if i % 4]}

#: A config, how many layers of which sort it makes, and bytes that a token adds to its attention caches in two bytes.
REAL: dict[str, tuple[dict[str, Any], dict[str, int], int]] = {
    "Llama 3.1 405B": (heads("LlamaForCausalLM", "llama", (126, 128, 8, 16384)), {"full": 126}, 126 * 2 * 8 * 128 * 2),
    "Mistral 7B v0.1": (
        heads("MistralForCausalLM", "mistral", (32, 32, 8, 4096), sliding_window=4096),
        {"window of 4096": 32},
        131072,
    ),
    "Mistral 7B v0.3": (
        heads("MistralForCausalLM", "mistral", (32, 32, 8, 4096), sliding_window=None),
        {"full": 32},
        131072,
    ),
    "Qwen2.5 0.5B": (
        heads("Qwen2ForCausalLM", "qwen2", (24, 14, 2, 896), sliding_window=32768, max_window_layers=21, **QWEN),
        {"full": 24},
        24 * 2 * 2 * 64 * 2,
    ),
    "Qwen2.5 72B": (
        heads("Qwen2ForCausalLM", "qwen2", (80, 64, 8, 8192), sliding_window=131072, max_window_layers=70, **QWEN),
        {"full": 80},
        80 * 2 * 8 * 128 * 2,
    ),
    "Qwen3 0.6B": (
        heads("Qwen3ForCausalLM", "qwen3", (28, 16, 8, 1024), head_dim=128, max_window_layers=28, **QWEN),
        {"full": 28},
        28 * 2 * 8 * 128 * 2,
    ),
    "Gemma 2 9B": (
        heads("Gemma2ForCausalLM", "gemma2", (42, 16, 8, 3584), head_dim=256, sliding_window=4096),
        {"window of 4096": 21, "full": 21},
        42 * 2 * 8 * 256 * 2,
    ),
    "Command R7B": (
        heads(
            "Cohere2ForCausalLM",
            "cohere2",
            (32, 32, 8, 4096),
            head_dim=128,
            sliding_window=4096,
            sliding_window_pattern=4,
        ),
        {"window of 4097": 24, "full": 8},
        131072,
    ),
    "Phi-4": (heads("Phi3ForCausalLM", "phi3", (40, 40, 10, 5120), sliding_window=None), {"full": 40}, 204800),
    "DeepSeek V3": (
        heads("DeepseekV3ForCausalLM", "deepseek_v3", (61, 128, 128, 7168), **V3),
        {"latent": 61},
        61 * 1152,
    ),
    "DeepSeek V3.2": (
        heads(
            "DeepseekV32ForCausalLM", "deepseek_v32", (61, 128, 128, 7168), index_topk=2048, index_head_dim=128, **V3
        ),
        {"latent": 61, "indexer": 61},
        61 * (1152 + 132),
    ),
    "Kimi-Linear 48B": (
        heads("KimiLinearForCausalLM", "kimi_linear", (27, 32, 32, 2304), head_dim=72)
        | {key: V3[key] for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
        | {"linear_attn_config": KIMI_LAYERS | {"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4}},
        {"state": 20, "latent": 7},
        7 * 1152,
    ),
    "Nemotron-H 8B": (
        heads("NemotronHForCausalLM", "nemotron_h", (52, 32, 8, 4096), **NEMOTRON),
        {"state": 24, "full": 4},
        4 * 2 * 8 * 128 * 2,
    ),
    "Jamba 1.5 Mini": (
        heads("JambaForCausalLM", "jamba", (32, 32, 8, 4096), attn_layer_offset=4, attn_layer_period=8)
        | {"mamba_d_conv": 4, "mamba_d_state": 16, "mamba_expand": 2, "mamba_dt_rank": 256, "sliding_window": None},
        {"state": 28, "full": 4},
        4 * 2 * 8 * 128 * 2,
    ),
    "LFM2 1.2B": (
        heads("Lfm2ForCausalLM", "lfm2", (16, 32, 8, 2048), conv_L_cache=3, conv_dim=2048)
        | {"full_attn_idxs": [2, 5, 8, 10, 12, 14]},
        {"state": 10, "full": 6},
        6 * 2 * 8 * 64 * 2,
    ),
    "Falcon 7B": (
        heads("FalconForCausalLM", "falcon", (32, 71, 71, 4544), multi_query=True, new_decoder_architecture=False),
        {"full": 32},
        32 * 2 * 64 * 2,
    ),
}


def sort(layer: Layer) -> str:
    if isinstance(layer, AttentionLayer):
        return "full" if layer.window is None else f"window of {layer.window}"
    if isinstance(layer, LatentLayer):
        return "latent" if layer.index_bytes is None else "indexer"
    return "state" if isinstance(layer, StateLayer) else "cross"


def token_bytes(model: Model) -> int:
    found = 0
    for layer in model.layers:
        if isinstance(layer, AttentionLayer):
            found += layer.heads * (layer.head_size + layer.head_size_v) * 2
        elif isinstance(layer, LatentLayer):
            found += layer.index_bytes or (layer.rank + layer.rope) * 2
    return found


@pytest.mark.parametrize("name", REAL)
def test_layers_and_bytes_a_token_are_those_of_the_model(name: str) -> None:
    fields, sorts, size = REAL[name]
    model = read_model(encoded(fields)).unwrap()
    assert Counter(map(sort, model.layers)) == sorts
    assert token_bytes(model) == size


@pytest.mark.parametrize("name", [name for name in REAL if "state" not in REAL[name][1]])
def test_a_block_of_each_group_costs_its_tokens(name: str) -> None:
    fields, _, size = REAL[name]
    served = serve(read_model(encoded(fields)).unwrap(), Deployment()).unwrap()
    assert served.block_bytes * len(served.registration.groups) == size * served.aligned_block
