"""Windows and full attention, the last layers of which read the caches of earlier ones (Gemma 3n, Gemma 4)."""

from __future__ import annotations

from typing import Final

from kvlayout.offline.config import Config
from kvlayout.offline.families.attention import windows
from kvlayout.offline.families.heads import Heads, heads
from kvlayout.offline.families.layers import Layers
from kvlayout.offline.families.patterns import FULL, SLIDING, every, layer_types

__all__ = ["sharing_by_distance", "sharing_by_kind"]

_KINDS: Final = (FULL, SLIDING)


def sharing_by_distance(config: Config, prefix: str) -> Layers:
    """Return layers of which the last share: one that slides with the last but one of its own, others with the last."""
    count, each = config.layers(), heads(config)
    first = _first_shared(config, count)
    kinds = layer_types(config, count, _KINDS) or every(5, count, FULL, SLIDING)
    made = []
    for i, window in enumerate(windows(config, kinds, count)):
        target = first - (1 if window is None else 2)
        shares = _name(prefix, target) if i >= first and target >= 0 else None
        made.append(each.layer(_name(prefix, i), window, shares=shares))
    return Layers(tuple(made), count)


def sharing_by_kind(config: Config, prefix: str) -> Layers:
    """Return layers of which the last share, each with the last of its kind before them.

    Layers of full attention have a head size of their own (``global_head_dim``), and where keys are values as well a
    number of key heads of their own (``num_global_key_value_heads``). The last layer is always of full attention.
    """
    count, sliding = config.layers(), heads(config)
    first = _first_shared(config, count)
    kinds = layer_types(config, count, _KINDS) or every(6, count, FULL, SLIDING)
    kinds = (*kinds[:-1], FULL)
    spans = windows(config, kinds, count, both_ways="all")
    each = {SLIDING: sliding, FULL: _global_heads(config, sliding)}
    made = []
    for i, kind in enumerate(kinds):
        earlier = [j for j in range(min(first, i)) if kinds[j] == kind]
        if i >= first and not earlier:
            config.faults.note(config.at("num_kv_shared_layers"), f"a layer of {kind} before those that share", "none")
        shares = _name(prefix, earlier[-1]) if i >= first and earlier else None
        made.append(each[kind].layer(_name(prefix, i), spans[i], shares=shares))
    return Layers(tuple(made), count)


def _first_shared(config: Config, count: int) -> int:
    shared = config.whole("num_kv_shared_layers", least=0, default=0)
    if shared >= count > 0 and shared:
        config.fault("num_kv_shared_layers", f"a number below num_hidden_layers ({count})")
    return max(count - shared, 0)


def _global_heads(config: Config, sliding: Heads) -> Heads:
    size = config.whole("global_head_dim", default=512)
    own = config.flag("attention_k_eq_v") and config.has("num_global_key_value_heads")
    kv = config.whole("num_global_key_value_heads") if own else sliding.kv
    if sliding.query % kv:
        config.fault("num_global_key_value_heads", f"a divisor of num_attention_heads ({sliding.query})")
    return Heads(sliding.query, kv, size)


def _name(prefix: str, index: int) -> str:
    return f"{prefix}.{index}.self_attn.attn"
