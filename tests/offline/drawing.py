"""Configs of every family of attention with other sizes and patterns, drawn from a seed, as vLLM accepts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from tests.offline.configs import config

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

__all__ = ["ATTENDING", "FULL", "LINEAR", "SLIDING", "Fields", "kinds", "with_heads", "with_layers"]

Fields: TypeAlias = dict[str, Any]
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"


def with_heads(random: Random, fields: Fields, *, own_size: bool = True) -> Fields:
    kv = random.choice((1, 2, 4, 8))
    query = kv * random.choice((1, 2, 3, 4, 8))
    fields |= {"num_attention_heads": query, "num_key_value_heads": kv}
    fields |= {"hidden_size": query * random.choice((32, 64, 96))}
    fields.pop("head_dim", None)
    if own_size and random.random() < 0.6:
        fields["head_dim"] = random.choice((32, 64, 80, 96, 128, 192, 256))
    return fields


def with_layers(random: Random, fields: Fields) -> int:
    fields["num_hidden_layers"] = random.randint(1, 9)
    return int(fields["num_hidden_layers"])


def kinds(random: Random, count: int, *among: str) -> list[str]:
    return [random.choice(among) for _ in range(count)]


def attention(kind: str, name: str, *, own_size: bool = True, **fixed: Any) -> Callable[[Random], Fields]:
    """Return a maker of attention with grouped heads; some of its fields are left to the defaults of their kind."""

    def made(random: Random) -> Fields:
        fields = config("llama", model_type=kind, architectures=[name], **fixed)
        with_layers(random, fields)
        with_heads(random, fields, own_size=own_size)
        fields["torch_dtype"] = random.choice(("bfloat16", "bfloat16", "float16", "float32"))
        if kind != "phi3" and random.random() < 0.2:
            fields["rope_scaling"] = random.choice(
                ({"rope_type": "linear", "factor": 2.0}, {"type": "dynamic", "factor": 4.0})
            )
        return fields

    return made


def windows(
    kind: str, name: str, *, pattern: str = "", listed: bool = True, **fixed: Any
) -> Callable[[Random], Fields]:
    """Return a maker of layers with windows, listed, by a pattern of their own or by the defaults of their kind."""
    plain = attention(kind, name, **fixed)

    def made(random: Random) -> Fields:
        fields = plain(random)
        fields.pop("rope_scaling", None)
        fields.pop("rope_theta", None)
        if random.random() < 0.7:
            fields["sliding_window"] = random.choice((64, 512, 1000))
        choice = random.random()
        if listed and choice < 0.4:
            fields["layer_types"] = kinds(random, fields["num_hidden_layers"], SLIDING, FULL)
        elif pattern and choice < 0.7:
            fields[pattern] = random.choice((2, 3, 4))
        return fields

    return made


def everywhere(kind: str, name: str, **fixed: Any) -> Callable[[Random], Fields]:
    """Return a maker of models with one window for all layers, or none."""
    plain = attention(kind, name, **fixed)

    def made(random: Random) -> Fields:
        fields = plain(random)
        if random.random() < 0.7:
            fields["sliding_window"] = random.choice((None, 0, 128, 1000))
        if "use_sliding_window" in fields:
            fields |= {"use_sliding_window": random.random() < 0.5, "max_window_layers": random.choice((0, 99))}
            fields["sliding_window"] = 256
        return fields

    return made


def gemma3n(random: Random) -> Fields:
    fields = config("gemma3n")
    count = random.randint(5, 9)
    with_heads(random, fields)
    fields |= {"num_hidden_layers": count, "activation_sparsity_pattern": [0.0] * count}
    fields |= {"num_kv_shared_layers": random.randint(0, count - 3), "sliding_window": random.choice((64, 256))}
    fields["layer_types"] = kinds(random, count, SLIDING, FULL) if random.random() < 0.5 else None
    return fields


def gemma4(random: Random) -> Fields:
    fields = config("gemma4")
    count = random.randint(4, 9)
    with_heads(random, fields)
    fields |= {"num_hidden_layers": count, "sliding_window": random.choice((64, 256))}
    fields |= {"attention_k_eq_v": random.random() < 0.5, "num_global_key_value_heads": random.choice((1, None))}
    fields["layer_types"] = kinds(random, count, SLIDING, FULL) if random.random() < 0.5 else None
    if fields["layer_types"]:
        fields["layer_types"][:2] = [SLIDING, FULL]
    fields["num_kv_shared_layers"] = random.choice((0, 0, 1, 2)) if fields["layer_types"] else 0
    if random.random() < 0.5:
        fields["global_head_dim"] = random.choice((64, 256))
    else:
        fields.pop("global_head_dim")
    return fields


def gptoss(random: Random) -> Fields:
    fields = config("gptoss")
    count = with_layers(random, fields)
    with_heads(random, fields)
    given = (kinds(random, count, SLIDING, FULL), [SLIDING] * count, None)
    fields |= {"sliding_window": random.choice((64, 128)), "layer_types": random.choice(given)}
    return fields | {"intermediate_size": 1024}


def llama4(random: Random) -> Fields:
    fields = config("llama4")
    count = with_layers(random, fields)
    with_heads(random, fields)
    fields |= {"attention_chunk_size": random.choice((64, 256, None)), "layer_types": None}
    fields["no_rope_layers"] = [random.choice((0, 1)) for _ in range(count)] if random.random() < 0.5 else None
    return fields | {"no_rope_layer_interval": random.choice((2, 4))}


def deepseek(random: Random) -> Fields:
    fields = config("deepseekv2")
    with_layers(random, fields)
    heads = random.choice((4, 8, 16))
    fields |= {"num_attention_heads": heads, "num_key_value_heads": heads, "kv_lora_rank": random.choice((256, 512))}
    fields |= {"qk_rope_head_dim": random.choice((32, 64)), "qk_nope_head_dim": random.choice((64, 128))}
    kind = random.choice(("deepseek_v2", "deepseek_v3", "kimi_k2"))
    if kind != "deepseek_v2":
        fields |= {"model_type": kind, "architectures": ["DeepseekV3ForCausalLM"], "q_lora_rank": 64}
    return fields


def whisper(random: Random) -> Fields:
    heads = random.choice((4, 8))
    fields = config("whisper", decoder_layers=random.randint(1, 4), encoder_layers=1, d_model=random.choice((128, 256)))
    return fields | {"decoder_attention_heads": heads, "encoder_attention_heads": heads}


_EXPERTS: Fields = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_GEMMA: Fields = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 64}
_COHERE: Fields = {"layer_norm_eps": 1e-5, "logit_scale": 1.0}

ATTENDING: dict[str, Callable[[Random], Fields]] = {
    "llama": attention("llama", "LlamaForCausalLM"),
    "mistral": everywhere("mistral", "MistralForCausalLM"),
    "mistral with kinds": windows("mistral", "MistralForCausalLM"),
    "mixtral": everywhere("mixtral", "MixtralForCausalLM", **_EXPERTS),
    "qwen2": everywhere("qwen2", "Qwen2ForCausalLM", own_size=False, use_sliding_window=True),
    "qwen3": everywhere("qwen3", "Qwen3ForCausalLM", use_sliding_window=True),
    "qwen3 moe": everywhere("qwen3_moe", "Qwen3MoeForCausalLM", use_sliding_window=True, **_EXPERTS),
    "phi3": everywhere("phi3", "Phi3ForCausalLM"),
    "glm4": attention("glm4", "Glm4ForCausalLM"),
    "granite": attention("granite", "GraniteForCausalLM"),
    "granite moe": attention("granitemoe", "GraniteMoeForCausalLM", own_size=False, **_EXPERTS),
    "olmo2": attention("olmo2", "Olmo2ForCausalLM"),
    "seed": attention("seed_oss", "SeedOssForCausalLM"),
    "gemma": attention("gemma", "GemmaForCausalLM", **_GEMMA),
    "gemma2": windows("gemma2", "Gemma2ForCausalLM", **_GEMMA),
    "gemma3": windows("gemma3_text", "Gemma3ForCausalLM", pattern="sliding_window_pattern", **_GEMMA),
    "cohere": attention("cohere", "CohereForCausalLM", **_COHERE),
    "cohere2": windows("cohere2", "Cohere2ForCausalLM", pattern="sliding_window_pattern", **_COHERE),
    "exaone4": windows("exaone4", "Exaone4ForCausalLM", pattern="sliding_window_pattern"),
    "olmo3": windows("olmo3", "Olmo3ForCausalLM"),
    "granite windows": windows("granite_swa", "GraniteSWAForCausalLM"),
    "cwm": windows("cwm", "CwmForCausalLM"),
    "hyperclova": attention("hyperclovax", "HyperCLOVAXForCausalLM"),
    "gemma3n": gemma3n,
    "gemma4": gemma4,
    "gptoss": gptoss,
    "llama4": llama4,
    "deepseek": deepseek,
    "whisper": whisper,
}
