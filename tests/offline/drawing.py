"""Configs of every family with other sizes and patterns, drawn from a seed, as vLLM accepts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from tests.offline.configs import config

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

__all__ = ["DRAWN", "draw"]

Fields: TypeAlias = dict[str, Any]
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"


def draw(name: str, random: Random) -> Fields:
    """Return a config of a kind."""
    return DRAWN[name](random)


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


def kimi(random: Random) -> Fields:
    fields = config("kimilinear")
    count = with_layers(random, fields)
    full = sorted(random.sample(range(1, count + 1), random.randint(0, count - 1)))
    delta = [i for i in range(1, count + 1) if i not in full]
    fields["linear_attn_config"] |= {"kda_layers": delta, "full_attn_layers": full}
    fields["linear_attn_config"] |= {"head_dim": random.choice((64, 128)), "num_heads": random.choice((4, 8))}
    fields["linear_attn_config"]["short_conv_kernel_size"] = random.choice((2, 4))
    return fields | {"kv_lora_rank": random.choice((256, 512)), "qk_rope_head_dim": random.choice((32, 64))}


def gated_delta(name: str) -> Callable[[Random], Fields]:
    def made(random: Random) -> Fields:
        fields = config(name)
        count = with_layers(random, fields)
        with_heads(random, fields)
        keys = random.choice((4, 8))
        fields |= {"linear_num_key_heads": keys, "linear_num_value_heads": keys * random.choice((1, 2, 4))}
        fields |= {f"linear_{kind}_head_dim": random.choice((32, 64, 128)) for kind in ("key", "value")}
        fields |= {"linear_conv_kernel_dim": random.choice((2, 3, 4)), "full_attention_interval": random.randint(1, 4)}
        if random.random() < 0.5:
            fields["layer_types"] = kinds(random, count, LINEAR, FULL)
        return fields

    return made


def space(random: Random, prefix: str = "mamba_") -> Fields:
    return {
        f"{prefix}n_groups": random.choice((1, 4)),
        f"{prefix}d_state": random.choice((16, 64, 128)),
        f"{prefix}d_conv": random.choice((2, 4)),
    }


def falcon(random: Random) -> Fields:
    fields = config("falconh1") | space(random)
    with_layers(random, fields)
    with_heads(random, fields)
    heads, size = random.choice((4, 8)), random.choice((16, 32, 64))
    fields |= {"mamba_n_heads": heads, "mamba_d_head": random.choice((size, "auto")), "mamba_d_ssm": heads * size}
    return fields if random.random() < 0.7 else fields | {"mamba_d_ssm": None, "mamba_d_head": "auto"}


def granite(random: Random) -> Fields:
    fields = config("granitehybrid") | space(random)
    count = with_layers(random, fields)
    with_heads(random, fields, own_size=False)
    fields |= {"mamba_n_heads": random.choice((4, 8)), "mamba_d_head": "auto"}
    return fields | {"layer_types": kinds(random, count, *random.choice((("mamba", "attention"), (LINEAR, FULL))))}


def nemotron(random: Random) -> Fields:
    fields = with_heads(random, config("nemotronh"))
    spelled = "".join(random.choice("M*-") for _ in range(random.randint(2, 9)))
    fields |= {"hybrid_override_pattern": spelled, "num_hidden_layers": len(spelled)}
    fields |= {"mamba_num_heads": random.choice((4, 8)), "mamba_head_dim": random.choice((32, 64))}
    fields |= {"n_groups": random.choice((1, 4)), "ssm_state_size": random.choice((16, 64)), "conv_kernel": 3}
    words = random.choice(({"M": "mamba", "*": "attention"}, {"M": LINEAR, "*": FULL}))
    if random.random() < 0.5:
        fields.pop("hybrid_override_pattern")
        fields["layers_block_type"] = [(words | {"-": "mlp"})[letter] for letter in spelled]
    return fields | ({"sliding_window": 128} if random.random() < 0.2 else {})


def zamba(random: Random) -> Fields:
    fields = config("zamba2")
    for follows in ("hybrid_layer_ids", "attention_hidden_size", "attention_head_dim"):
        fields.pop(follows)
    count, heads = with_layers(random, fields), random.choice((4, 8))
    fields |= {"num_attention_heads": heads, "num_key_value_heads": heads, "hidden_size": heads * 32}
    fields |= {"n_mamba_heads": random.choice((4, 8)), "mamba_ngroups": random.choice((1, 4)), "mamba_d_state": 16}
    return fields | {
        "num_mem_blocks": random.choice((1, 2, 3)),
        "layers_block_type": kinds(random, count, "mamba", "hybrid"),
    }


def lfm2(random: Random) -> Fields:
    fields = config("lfm2")
    count = with_layers(random, fields)
    with_heads(random, fields, own_size=False)
    width = fields["hidden_size"]
    fields |= {"conv_L_cache": random.choice((2, 3, 4)), "conv_dim": width, "block_dim": width}
    if random.random() < 0.5:
        return fields | {"layer_types": kinds(random, count, "conv", FULL)}
    full = sorted(random.sample(range(count), random.randint(1, count)))
    return fields | {"layer_types": None, "full_attn_idxs": full}


def jamba(random: Random) -> Fields:
    fields = config("jamba")
    with_layers(random, fields)
    with_heads(random, fields, own_size=False)
    period = random.choice((2, 3, 4))
    fields |= {"attn_layer_period": period, "attn_layer_offset": random.randrange(period)}
    return fields | {"mamba_d_state": random.choice((8, 16)), "mamba_d_conv": random.choice((2, 4))}


def mamba2(random: Random) -> Fields:
    fields = config("mamba2")
    with_layers(random, fields)
    heads, size = random.choice((4, 8)), random.choice((32, 64))
    fields |= {"num_heads": heads, "head_dim": size, "hidden_size": heads * size // 2}
    return fields | {"state_size": random.choice((16, 64)), "n_groups": random.choice((1, 4)), "conv_kernel": 3}


def mamba1(random: Random) -> Fields:
    fields = config("mamba")
    with_layers(random, fields)
    kind, name = random.choice((("mamba", "MambaForCausalLM"), ("falcon_mamba", "FalconMambaForCausalLM")))
    fields |= {"model_type": kind, "architectures": [name], "hidden_size": random.choice((64, 128))}
    fields |= {"state_size": random.choice((8, 16)), "expand": random.choice((1, 2))}
    if random.random() < 0.5:
        fields.pop("intermediate_size")
    return fields


def whisper(random: Random) -> Fields:
    heads = random.choice((4, 8))
    fields = config("whisper", decoder_layers=random.randint(1, 4), encoder_layers=1, d_model=random.choice((128, 256)))
    return fields | {"decoder_attention_heads": heads, "encoder_attention_heads": heads}


_EXPERTS: Fields = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_GEMMA: Fields = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 64}
_COHERE: Fields = {"layer_norm_eps": 1e-5, "logit_scale": 1.0}

DRAWN: dict[str, Callable[[Random], Fields]] = {
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
    "gemma3n": gemma3n,
    "gemma4": gemma4,
    "gptoss": gptoss,
    "llama4": llama4,
    "deepseek": deepseek,
    "kimi": kimi,
    "qwen35": gated_delta("qwen35"),
    "qwen3next": gated_delta("qwen3next"),
    "falcon": falcon,
    "granite hybrid": granite,
    "nemotron": nemotron,
    "zamba": zamba,
    "lfm2": lfm2,
    "jamba": jamba,
    "mamba2": mamba2,
    "mamba1": mamba1,
    "whisper": whisper,
}
