"""Attention whose configs spell their heads or their windows in ways of their own (GPT-2, Falcon, GPT-OSS, MiMo-V2)."""

from __future__ import annotations

from attrs import evolve

from kvlayout.cache.strict_json import SkipError
from kvlayout.offline.config import Config
from kvlayout.offline.families.heads import Heads, heads, share
from kvlayout.offline.families.layers import Layers
from kvlayout.offline.families.patterns import FULL, SLIDING, layer_types
from kvlayout.offline.model import AttentionLayer

__all__ = ["alternating", "falcon_heads", "gpt2", "two_sorts", "wide_keys"]


def gpt2(config: Config, prefix: str) -> Layers:
    """Return attention of ``n_layer`` layers and ``n_head`` heads, of which ``multi_query`` gives keys to one."""
    query = config.whole("n_head")
    each = Heads(query, 1 if config.flag("multi_query") else query, share(config, "n_embd", query, "n_head"))
    count = config.layers("n_layer")
    return Layers(tuple(each.layer(f"{prefix}.{i}.attn.attn") for i in range(count)), count)


def wide_keys(config: Config, prefix: str) -> Layers:
    """Return attention from compressed rows that are kept as keys and values: heads of both parts of a key together."""
    query, count = config.whole("num_attention_heads"), config.layers()
    config.maybe("kv_lora_rank")
    size = config.whole("qk_nope_head_dim") + config.whole("qk_rope_head_dim")
    each = Heads(query, query, size)
    return Layers(tuple(each.layer(f"{prefix}.{i}.self_attn.attn") for i in range(count)), count)


def two_sorts(config: Config, prefix: str) -> Layers:
    """Return layers of which those that slide have heads of their own; values are narrower than keys in both sorts."""
    count, window = config.layers(), config.length("sliding_window") or config.length("sliding_window_size")
    marks = config.wholes("hybrid_layer_pattern")
    if marks is None or len(marks) < count or window is None:
        config.fault("hybrid_layer_pattern", f"a mark for each of {count} layers, and sliding_window")
        raise SkipError
    full, sliding = _sort(config, ""), _sort(config, "swa_")
    name = f"{prefix}.{{}}.self_attn.attn"
    made = (
        evolve(sliding, name=name.format(i), window=window) if marks[i] == 1 else evolve(full, name=name.format(i))
        for i in range(count)
    )
    return Layers(tuple(made), count)


def _sort(config: Config, start: str) -> AttentionLayer:
    query, kv = config.whole(f"{start}num_attention_heads"), config.whole(f"{start}num_key_value_heads")
    if query % kv and config.sound(f"{start}num_attention_heads", f"{start}num_key_value_heads"):
        config.fault(f"{start}num_key_value_heads", f"a divisor of {start}num_attention_heads ({query})")
    size = config.whole(f"{start}head_dim")
    return AttentionLayer("", query, kv, size, config.whole(f"{start}v_head_dim", default=size))


def falcon_heads(config: Config, prefix: str) -> Layers:
    """Return attention with one key head for all query heads, unless a newer form or ``multi_query`` says otherwise."""
    query, count = config.whole("num_attention_heads"), config.layers()
    kv = query
    if config.flag("new_decoder_architecture"):
        kv = config.whole("num_kv_heads", default=query)
    elif config.flag("multi_query", default=True):
        kv = 1
    each = Heads(query, kv, share(config, "hidden_size", query, "num_attention_heads"))
    return Layers(tuple(each.layer(f"{prefix}.{i}.self_attention.attn") for i in range(count)), count)


def alternating(config: Config, prefix: str) -> Layers:
    """Return windows in every other layer, from the first on.

    The number of a layer decides, and not ``layer_types``: so does the engine, unless they all slide.
    """
    count, each = config.layers(), heads(config)
    window = config.length("sliding_window", least=0) or None
    kinds = layer_types(config, count, (FULL, SLIDING)) or (FULL,)
    everywhere = set(kinds) == {SLIDING}
    made = (each.layer(f"{prefix}.{i}.attn.attn", window if everywhere or i % 2 == 0 else None) for i in range(count))
    return Layers(tuple(made), count)
