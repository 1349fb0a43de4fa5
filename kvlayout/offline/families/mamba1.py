"""Selective state spaces of the first kind, alone (Mamba, Falcon-Mamba) or with attention between (Jamba)."""

from __future__ import annotations

from kvlayout.offline.config import Config
from kvlayout.offline.families.heads import heads
from kvlayout.offline.families.layers import Layers
from kvlayout.offline.model import Mamba1, StateLayer

__all__ = ["jamba", "mamba"]

_KIND = "MAMBA1"


def mamba(config: Config, prefix: str) -> Layers:
    """Return a state space for each layer."""
    channels = config.maybe("intermediate_size") or config.whole("expand") * config.whole("hidden_size")
    space = Mamba1(channels, config.whole("state_size"), config.whole("conv_kernel", least=2))
    count = config.layers()
    return Layers(tuple(StateLayer(f"{prefix}.{i}.mixer", _KIND, space) for i in range(count)), count)


def jamba(config: Config, prefix: str) -> Layers:
    """Return state spaces, and attention in one of ``attn_layer_period`` layers, from ``attn_layer_offset`` on."""
    count, full = config.layers(), heads(config, own_size=False)
    channels = config.whole("mamba_expand") * config.whole("hidden_size")
    space = Mamba1(channels, config.whole("mamba_d_state"), config.whole("mamba_d_conv", least=2))
    period, offset = config.whole("attn_layer_period"), config.whole("attn_layer_offset", least=0)
    if offset >= period:
        config.fault("attn_layer_offset", f"a number below attn_layer_period ({period})")
    made = (
        full.layer(f"{prefix}.{i}.attn") if i % period == offset else StateLayer(f"{prefix}.{i}.mixer", _KIND, space)
        for i in range(count)
    )
    return Layers(tuple(made), count)
