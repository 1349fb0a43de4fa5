"""Attention whose configs spell their heads in ways of their own (GPT-2, Falcon, GPT-OSS)."""

from __future__ import annotations

from kvlayout.offline.config import Config
from kvlayout.offline.families.heads import Heads, heads, share
from kvlayout.offline.families.layers import Layers
from kvlayout.offline.families.patterns import FULL, SLIDING, layer_types

__all__ = ["alternating", "falcon_heads", "gpt2"]


def gpt2(config: Config, prefix: str) -> Layers:
    """Return attention of ``n_layer`` layers and ``n_head`` heads."""
    key = "n_head" if config.has("n_head") else "num_attention_heads"
    query = config.whole(key)
    each = Heads(query, query, share(config, "n_embd", query, key))
    count = config.layers("n_layer")
    return Layers(tuple(each.layer(f"{prefix}.{i}.attn.attn") for i in range(count)), count)


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
