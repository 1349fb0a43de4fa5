"""A decoder that attends to an encoder (Whisper): its cross attention is planned, and refused with the reason."""

from __future__ import annotations

from kvlayout.offline.config import Config
from kvlayout.offline.families.heads import Heads, share
from kvlayout.offline.families.layers import Layers
from kvlayout.offline.model import CrossLayer, Layer

__all__ = ["cross"]


def cross(config: Config, prefix: str) -> Layers:
    """Return attention to itself and to the encoder for each of ``decoder_layers``."""
    count, heads = config.layers("decoder_layers"), config.whole("decoder_attention_heads")
    config.whole("encoder_layers", least=0)
    size = share(config, "d_model", heads, "decoder_attention_heads")
    made: list[Layer] = []
    for i in range(count):
        made.append(Heads(heads, heads, size).layer(f"{prefix}.{i}.layers.self_attn.attn"))
        made.append(CrossLayer(f"{prefix}.{i}.layers.encoder_attn.attn", heads, size))
    return Layers(tuple(made), count)
