"""Latent attention: one compressed row a token instead of keys and values (DeepSeek V2 and V3, Kimi K2).

An indexer picks the tokens that are looked at in some (DeepSeek V3.2), and keeps rows of its own.

>>> from kvlayout.offline.config import Config, Faults
>>> sizes = {"num_hidden_layers": 1, "num_attention_heads": 16, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
>>> latent(Config(sizes | {"qk_nope_head_dim": 128, "v_head_dim": 128}, Faults()), "model.layers").layers
(LatentLayer(name='model.layers.0.self_attn.attn', rank=512, rope=64, index_bytes=None, window=None),)
"""

from __future__ import annotations

from typing import Final

from kvlayout.offline.config import Config
from kvlayout.offline.families.layers import Layers
from kvlayout.offline.model import LatentLayer, Layer

__all__ = ["indexed", "latent", "latent_rows"]

#: Elements that share one 4-byte scale in the rows of an indexer.
_SCALED: Final = 128


def latent(config: Config, prefix: str) -> Layers:
    """Return a latent layer for each of ``num_hidden_layers``, with an indexer where the config has one."""
    if config.has("index_topk"):
        return indexed(config, prefix)
    count, (rank, rope) = config.layers(), latent_rows(config)
    config.whole("num_attention_heads")
    return Layers(tuple(LatentLayer(f"{prefix}.{i}.self_attn.attn", rank, rope) for i in range(count)), count)


def indexed(config: Config, prefix: str) -> Layers:
    """Return latent layers, each after the indexer that picks its tokens; some use the picks of an earlier one."""
    count, (rank, rope) = config.layers(), latent_rows(config)
    config.whole("num_attention_heads")
    size = config.whole("index_head_dim", default=128)
    row = size + size // _SCALED * 4
    made: list[Layer] = []
    for i, picks in enumerate(_picks(config, count)):
        place = f"{prefix}.{i}.self_attn"
        if picks:
            made.append(LatentLayer(f"{place}.indexer.k_cache", 0, 0, index_bytes=row))
        made.append(LatentLayer(f"{place}.attn", rank, rope))
    return Layers(tuple(made), count)


def _picks(config: Config, count: int) -> tuple[bool, ...]:
    """Tell which layers have an indexer: by ``index_topk_pattern``, or one in ``index_topk_freq``."""
    pattern = config.text("index_topk_pattern")
    if pattern:
        return tuple(pattern[i : i + 1] != "S" for i in range(count))
    often = config.whole("index_topk_freq", default=1)
    offset = config.whole("index_skip_topk_offset", least=0, default=2)
    return tuple(max(i - offset + 1, 0) % often == 0 for i in range(count))


def latent_rows(config: Config) -> tuple[int, int]:
    """Return the compressed and the rotated elements of a row; the widths that are not cached must be there too."""
    for key in ("qk_nope_head_dim", "v_head_dim"):
        config.whole(key)
    return config.whole("kv_lora_rank"), config.whole("qk_rope_head_dim", least=0)
