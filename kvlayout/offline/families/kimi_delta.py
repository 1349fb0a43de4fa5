"""Kimi delta attention with latent attention every few layers (Kimi-Linear)."""

from __future__ import annotations

from kvlayout.cache.strict_json import SkipError
from kvlayout.offline.config import Config
from kvlayout.offline.families.latent import latent_rows
from kvlayout.offline.families.layers import Layers
from kvlayout.offline.model import KimiDelta, LatentLayer, StateLayer

__all__ = ["kimi_delta"]


def kimi_delta(config: Config, prefix: str) -> Layers:
    """Return delta attention where ``linear_attn_config.kda_layers`` lists a layer (from 1), and latent attention else.

    Raises:
        SkipError: there is no ``linear_attn_config``, and the fault is noted.
    """
    count, (rank, rope) = config.layers(), latent_rows(config)
    config.whole("num_attention_heads")
    linear = config.child("linear_attn_config")
    if linear is None:
        config.fault("linear_attn_config", "an object with kda_layers, full_attn_layers, num_heads and head_dim")
        raise SkipError
    delta = KimiDelta(
        linear.whole("num_heads"), linear.whole("head_dim"), linear.whole("short_conv_kernel_size", least=2)
    )
    listed = {key: linear.wholes(key) for key in ("kda_layers", "full_attn_layers")}
    for key, layers in listed.items():
        if layers is None:
            linear.fault(key, "a list of layers, counted from 1")
    deltas = frozenset(listed["kda_layers"] or ())
    made = (
        StateLayer(f"{prefix}.{i}.self_attn", "GDN_ATTN", delta)
        if i + 1 in deltas
        else LatentLayer(f"{prefix}.{i}.self_attn", rank, rope)
        for i in range(count)
    )
    return Layers(tuple(made), count)
