"""Short convolutions with full attention between (LFM2)."""

from __future__ import annotations

from kvlayout.offline.config import Config
from kvlayout.offline.families.heads import heads
from kvlayout.offline.families.layers import Layers
from kvlayout.offline.families.patterns import FULL, layer_types
from kvlayout.offline.model import ShortConv, StateLayer

__all__ = ["short_conv"]

_CONV = "conv"


def short_conv(config: Config, prefix: str) -> Layers:
    """Return convolutions, and full attention where ``layer_types`` or ``full_attn_idxs`` says."""
    count, full = config.layers(), heads(config, own_size=False)
    channels = config.maybe("conv_dim") or config.whole("hidden_size")
    conv = ShortConv(channels, config.whole("conv_L_cache", least=2))
    kinds = layer_types(config, count, (_CONV, FULL)) or _by_index(config, count)
    made = (
        full.layer(f"{prefix}.{i}.self_attn.attn")
        if kind == FULL
        else StateLayer(f"{prefix}.{i}.short_conv", "SHORT_CONV", conv)
        for i, kind in enumerate(kinds)
    )
    return Layers(tuple(made), count)


def _by_index(config: Config, count: int) -> tuple[str, ...]:
    listed = config.wholes("full_attn_idxs")
    full = frozenset(range(count) if listed is None else listed)
    return tuple(FULL if i in full else _CONV for i in range(count))
