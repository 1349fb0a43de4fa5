"""Tiny models with the cache structure of real ones, and the cases in which they are stored and retrieved.

As few layers as show each kind of cache and each kind of group: what matters is what an engine registers for a model,
not how well it writes. Weights are random and large (see engine.py).
"""

from __future__ import annotations

from typing import Any

import attrs

__all__ = ["CASES", "Case", "config_of"]

_COMMON: dict[str, Any] = {
    "vocab_size": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}

#: Three layers of gated delta rule, then one of attention, twice: with 4 layers, no group would have more than one.
_LINEAR: dict[str, Any] = {
    "num_hidden_layers": 8,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "partial_rotary_factor": 0.25,
}

_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 64,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
}

_MODELS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 3},
    "qwen35": {
        **_LINEAR,
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    },
    "qwen3next": {
        **_LINEAR,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "nemotronh": {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "num_hidden_layers": 6,
        "hybrid_override_pattern": "M*-M*-",
        "attention_head_dim": 64,
        "mlp_hidden_act": "relu2",
        "mamba_hidden_act": "silu",
        "mamba_num_heads": 4,
        "mamba_head_dim": 64,
        "n_groups": 1,
        "ssm_state_size": 64,
        "conv_kernel": 4,
        "expand": 2,
        "chunk_size": 128,
        "use_conv_bias": True,
        "use_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "mamba_proj_bias": False,
        "layer_norm_epsilon": 1e-5,
        "rescale_prenorm_residual": False,
        "residual_in_fp32": False,
    },
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 3,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 64,
        "sliding_window": 256,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
    },
    "gptoss": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_theta": 150000.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 2.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
    },
    #: Its last two layers own no cache: one reads that of the sliding layer 2, one that of the full layer 3.
    "gemma3n": {
        "architectures": ["Gemma3nForCausalLM"],
        "model_type": "gemma3n_text",
        "num_hidden_layers": 6,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 256,
        "vocab_size_per_layer_input": 512,
        "hidden_size_per_layer_input": 32,
        "num_kv_shared_layers": 2,
        "laurel_rank": 16,
        "altup_num_inputs": 4,
        "activation_sparsity_pattern": [0.0] * 6,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention", "sliding_attention", "full_attention"],
    },
    "deepseekv2": {
        **_LATENT,
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_hidden_layers": 3,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "attention_bias": False,
    },
    "kimilinear": {
        **_LATENT,
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "num_hidden_layers": 4,
        "mla_use_nope": True,
        "num_experts": 4,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "use_grouped_topk": True,
        "num_expert_group": 1,
        "linear_attn_config": {
            "kda_layers": [1, 2, 3],
            "full_attn_layers": [4],
            "head_dim": 128,
            "num_heads": 4,
            "short_conv_kernel_size": 4,
        },
    },
}


def config_of(model: str) -> dict[str, Any]:
    """Return the config.json of a model."""
    return _COMMON | _MODELS[model]


@attrs.frozen
class Case:
    """A model and the engine options under which it runs.

    ``kernel_tokens`` is the page that its attention backend is made to advertise (None: its own, unsplit), and
    ``one_token_left`` says that the engine computes no prompt on top of a loaded prefix, but a single token.
    """

    name: str
    model: str
    options: dict[str, Any] = attrs.field(factory=dict)
    kernel_tokens: int | None = None
    one_token_left: bool = False


#: A state exists at the end of a step only: here behind two blocks of a prompt, and behind the third.
_HYBRID: dict[str, Any] = {"mamba_cache_mode": "align", "max_num_batched_tokens": 512}
#: The chunked prefill of Mamba2 fails on this backend in align mode where a step is longer than a chunk.
_MAMBA2: dict[str, Any] = _HYBRID | {"max_num_batched_tokens": 128}
_PLAIN: dict[str, Any] = {"block_size": 128}
_FP8: dict[str, Any] = _PLAIN | {"kv_cache_dtype": "fp8"}
#: The backend of every CPU; where there is AMX, vLLM would take another.
_MLA: dict[str, Any] = {"attention_backend": "CPU_MLA"}
#: Built, and its caches allocated, but never run: its kernels are not for CPUs.
_KIMI: dict[str, Any] = _HYBRID


def _cases() -> tuple[Case, ...]:
    made = []
    for name, model, options in (
        ("qwen3.5", "qwen35", _HYBRID),
        ("qwen3-next", "qwen3next", _HYBRID),
        ("nemotron-h", "nemotronh", _MAMBA2),
        ("llama", "llama", _PLAIN),
        ("llama-fp8", "llama", _FP8),
        ("gemma-3", "gemma3", _PLAIN),
        ("gpt-oss", "gptoss", _PLAIN),
        ("gemma-3n", "gemma3n", _PLAIN),
    ):
        made += [Case(name, model, options), Case(f"{name}, pages of 32", model, options, 32)]
    # its decode kernel reads pages of 16 and no others
    made.append(Case("deepseek-v2", "deepseekv2", _MLA, None, one_token_left=True))
    made.append(Case("deepseek-v2, pages of 16", "deepseekv2", _MLA, 16, one_token_left=True))
    made.append(Case("kimi-linear", "kimilinear", _KIMI))
    made.append(Case("kimi-linear, pages of 32", "kimilinear", _KIMI, 32))
    return tuple(made)


CASES = {case.name: case for case in _cases()}
