"""Gated delta nets with full attention every few layers (Qwen3-Next, Qwen3.5)."""

from __future__ import annotations

from kvlayout.offline.config import Config
from kvlayout.offline.families.heads import heads
from kvlayout.offline.families.layers import Layers
from kvlayout.offline.families.patterns import FULL, LINEAR, every, layer_types
from kvlayout.offline.model import GatedDelta, StateLayer

__all__ = ["gated_delta"]


def gated_delta(config: Config, prefix: str) -> Layers:
    """Return delta nets, and full attention where ``layer_types`` or ``full_attention_interval`` says."""
    count, full, delta = config.layers(), heads(config), delta_net(config)
    interval = config.whole("full_attention_interval", default=4)
    kinds = layer_types(config, count, (LINEAR, FULL)) or every(interval, count, FULL, LINEAR)
    made = (
        full.layer(f"{prefix}.{i}.self_attn.attn")
        if kind == FULL
        else StateLayer(f"{prefix}.{i}.linear_attn", "GDN_ATTN", delta)
        for i, kind in enumerate(kinds)
    )
    return Layers(tuple(made), count)


def delta_net(config: Config) -> GatedDelta:
    """Return the sizes of a delta net."""
    keys, values = config.whole("linear_num_key_heads"), config.whole("linear_num_value_heads")
    if values % keys and config.sound("linear_num_key_heads", "linear_num_value_heads"):
        config.fault("linear_num_value_heads", f"a multiple of linear_num_key_heads ({keys})")
    return GatedDelta(
        keys,
        values,
        config.whole("linear_key_head_dim"),
        config.whole("linear_value_head_dim"),
        config.whole("linear_conv_kernel_dim", least=2),
    )
