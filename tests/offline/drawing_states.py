"""Configs of families with recurrent states, drawn from a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.offline.configs import config
from tests.offline.drawing import FULL, LINEAR, Fields, kinds, with_heads, with_layers

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

__all__ = ["RECURRENT"]


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


RECURRENT: dict[str, Callable[[Random], Fields]] = {
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
}
